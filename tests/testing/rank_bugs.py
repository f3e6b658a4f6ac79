"""Scalers of several ranks: a right one, and wrong ones, each with the check that it breaks."""

import torch
import torch.distributed as dist

READY = torch.amp.grad_scaler.OptState.READY


class Right(torch.amp.GradScaler):
    """torch's, with the largest of all ranks' found_inf in place of one's own before anybody steps."""

    op = dist.ReduceOp.MAX

    def __init__(self, group, init_scale=1024.0):
        super().__init__("cpu", init_scale, growth_interval=2)
        self.ranks, self.numbers = group, {}

    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        found.setdefault(torch.device("cpu"), torch.zeros(()))
        self.agree(optimizer, found[torch.device("cpu")])

    def agree(self, optimizer, found):
        number = self.numbers.setdefault(id(optimizer), len(self.numbers))
        told = torch.tensor([float(found), number, -number])
        dist.all_reduce(told, self.op, self.ranks)
        if told[1] != -told[2]:
            raise RuntimeError(f"optimizer {number} here, and another one elsewhere")
        found.copy_(told[0])

    def step(self, optimizer, *args, **kwargs):
        if self._per_optimizer_states[id(optimizer)]["stage"] is READY:
            self.unscale_(optimizer)
        return super().step(optimizer, *args, **kwargs)

    def flags(self):
        """What this iteration found, per optimizer."""
        states = self._per_optimizer_states.values()
        return [
            flag for state in states for flag in state["found_inf_per_device"].values()
        ]


class CarriesNoKey(Right):
    """The n-th verdict of one rank is joined with the n-th of the others, whatever they are of."""

    def agree(self, optimizer, found):
        dist.all_reduce(found, self.op, self.ranks)


class SumForMax(CarriesNoKey):
    """Two ranks that overflow give 2, and a fused kernel asks whether it is exactly 1."""

    op = dist.ReduceOp.SUM


class MinForMax(CarriesNoKey):
    op = dist.ReduceOp.MIN


class SkipsLocally(Right):
    """Each rank skips for itself."""

    def agree(self, optimizer, found):
        pass


class AgreesAfterTheSteps(Right):
    """The scale knows of all overflows, the steps do not."""

    def agree(self, optimizer, found):
        pass

    def update(self, new_scale=None):
        for found in self.flags():
            dist.all_reduce(found, self.op, self.ranks)
        super().update(new_scale)


class PollsWhatTheOthersSay(Right):
    """The first rank waits once; then it goes by its own verdict where the common one is not there
    yet.
    """

    waited = False

    def agree(self, optimizer, found):
        told = found.clone()
        work = dist.all_reduce(told, self.op, self.ranks, async_op=True)
        if self.ranks.rank() > 0 or not self.waited or work.is_completed():
            work.wait()
            found.copy_(told)
        self.waited = True


class AgreesOnTheFirstOptimizer(Right):
    def agree(self, optimizer, found):
        if optimizer is self.first_of_all(optimizer):
            super().agree(optimizer, found)

    def first_of_all(self, optimizer):
        self.first = getattr(self, "first", optimizer)
        return self.first


class AsksOnlyIfItFound(Right):
    """Who found nothing does not come to the collective."""

    def agree(self, optimizer, found):
        if found:
            super().agree(optimizer, found)


class RaisesWithoutGradients(Right):
    def agree(self, optimizer, found):
        super().agree(optimizer, found)
        if all(
            param.grad is None
            for group in optimizer.param_groups
            for param in group["params"]
        ):
            raise ValueError("nothing to check")


class PollsInTurn(CarriesNoKey):
    """One of two ranks does not wait: right as long as it is the last to come, as it is where
    nobody is preempted.
    """

    turn = 0

    def agree(self, optimizer, found):
        self.turn += 1
        if self.ranks.rank() != self.turn % 2:
            super().agree(optimizer, found)
            return
        joined = found.clone()
        self.work = dist.all_reduce(joined, self.op, self.ranks, async_op=True)
        if self.work.is_completed():
            found.copy_(joined)


class ReducesBeforeAllLooked(Right):
    """What the last parameter holds is looked at after the others' result is out."""

    def unscale_(self, optimizer):
        *_, last = optimizer.param_groups[0]["params"]
        late, last.grad = last.grad, None
        super().unscale_(optimizer)
        last.grad = late
        if late is not None:
            inverse, found = (
                1 / self._scale,
                self._per_optimizer_states[id(optimizer)]["found_inf_per_device"],
            )
            torch._amp_foreach_non_finite_check_and_unscale_(
                [late], found[torch.device("cpu")], inverse
            )


class CountsOverflowingRanks(Right):
    """The scale falls once per rank that overflows."""

    def agree(self, optimizer, found):
        self.count = found.clone()
        dist.all_reduce(self.count, dist.ReduceOp.SUM, self.ranks)
        super().agree(optimizer, found)

    def update(self, new_scale=None):
        super().update(new_scale)
        self._scale *= 0.5 ** max(0.0, float(self.count) - 1)


class KeepsTheScaleBesideAnEmptyRank(Right):
    """The scale does not fall where a rank has no gradients."""

    empty = False

    def unscale_(self, optimizer):
        gradients = [
            param.grad for group in optimizer.param_groups for param in group["params"]
        ]
        told = torch.tensor(float(all(gradient is None for gradient in gradients)))
        dist.all_reduce(told, self.op, self.ranks)
        self.empty = self.empty or bool(told)
        super().unscale_(optimizer)

    def update(self, new_scale=None):
        before = self._scale.clone()
        super().update(new_scale)
        if self.empty:
            self._scale.copy_(before)
        self.empty = False


class CountsOptimizers(Right):
    """The scale falls once per optimizer that overflows."""

    def update(self, new_scale=None):
        times = sum(map(bool, self.flags()))
        super().update(new_scale)
        self._scale *= 0.5 ** max(0, times - 1)


class UpdatesOnRankZero(Right):
    def update(self, new_scale=None):
        if self.ranks.rank() == 0:
            super().update(new_scale)
        else:
            self._per_optimizer_states.clear()


class LeavesAfterASkip(Right):
    """A rank that overflowed begins the next iteration, and the others wait in its update."""

    def update(self, new_scale=None):
        own = self.own
        super().update(new_scale)
        if not own:
            dist.barrier(self.ranks)

    def agree(self, optimizer, found):
        self.own = bool(found)
        super().agree(optimizer, found)


class RaisesOnItsOwnOverflow(Right):
    def agree(self, optimizer, found):
        own = bool(found)
        super().agree(optimizer, found)
        if own:
            raise FloatingPointError("overflow")


class LoadsOnRankZero(Right):
    def load_state_dict(self, state_dict):
        if self.ranks.rank() == 0:
            super().load_state_dict(state_dict)


class SkipsAfterASkip(Right):
    """A flag that is kept for the next collective is not cleared."""

    def agree(self, optimizer, found):
        self.kept = torch.maximum(getattr(self, "kept", found), found)
        dist.all_reduce(self.kept, self.op, self.ranks)
        found.copy_(self.kept)


class StepsTwiceOnTheLastRank(Right):
    """A retry that only one rank makes."""

    def step(self, optimizer, *args, **kwargs):
        result = super().step(optimizer, *args, **kwargs)
        if self.ranks.rank() == self.ranks.size() - 1 and not any(self.flags()):
            optimizer.step()
        return result


class SumsHalves(Right):
    """Gradients are averaged here: as float16, and their sum is divided after it overflowed."""

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for param in group["params"]:
                summed = torch.zeros_like(param) if param.grad is None else param.grad
                summed = summed.half()
                dist.all_reduce(summed, dist.ReduceOp.SUM, self.ranks)
                param.grad = summed.float() / self.ranks.size()
        super().unscale_(optimizer)


class LooksAtItsShard(Right):
    """For DTensors: each rank looks at the part that it has, and asks nobody."""

    def unscale_(self, optimizer):
        grads = [
            param.grad.to_local()
            for group in optimizer.param_groups
            for param in group["params"]
        ]
        found, state = torch.zeros(()), self._per_optimizer_states[id(optimizer)]
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, 1 / self._scale)
        state.update(
            found_inf_per_device={found.device: found},
            stage=torch.amp.grad_scaler.OptState.UNSCALED,
        )


WRONG = {
    CarriesNoKey: "desynchronized_rank_is_detected",
    SumForMax: "parameters_stay_finite",
    MinForMax: "no_rank_steps_on_overflow",
    SkipsLocally: "ranks_agree_on_skips",
    AgreesAfterTheSteps: "ranks_agree_on_skips",
    AgreesOnTheFirstOptimizer: "ranks_agree_on_skips",
    AsksOnlyIfItFound: "no_deadlock",
    RaisesWithoutGradients: "rank_without_gradients_participates",
    PollsInTurn: "ranks_agree_on_skips",
    ReducesBeforeAllLooked: "no_rank_steps_on_overflow",
    CountsOverflowingRanks: "simultaneous_overflows_count_once",
    KeepsTheScaleBesideAnEmptyRank: "simultaneous_overflows_count_once",
    CountsOptimizers: "simultaneous_overflows_count_once",
    UpdatesOnRankZero: "ranks_agree_on_scale",
    LeavesAfterASkip: "no_deadlock",
    RaisesOnItsOwnOverflow: "no_rank_raises",
    LoadsOnRankZero: "resume_from_one_rank_is_exact",
    SkipsAfterASkip: "finite_steps_are_taken",
    SumsHalves: "scale_does_not_depend_on_ranks",
    StepsTwiceOnTheLastRank: "ranks_agree_on_step_counts",
}
