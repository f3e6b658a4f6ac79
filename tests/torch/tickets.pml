/* The ticket protocol of ampsim.torch as a Promela model: one client begins tickets and hands their
   work over a FIFO; one executor applies updates. N iterations at depth K.

   Checked: ticket i carries version max(0, i - K); at most K + 1 tickets are outstanding; versions are made in
   order; everybody ends. BUG plants one mistake; tests/torch/test_model.py sees each of them found. */

#ifndef N
#define N 5
#endif
#ifndef K
#define K 1
#endif
#ifndef BUG
#define BUG 0     /* 1: room for one ticket too many   2: publish before the version is made
                     3: no wake-up after a publish     4: carries the newest version, not its own */
#endif

byte applied = 0;            /* versions made, beyond version 0 */
byte begun = 0;              /* tickets begun */
bool made[N + 1];            /* after[j] has been written */
bool locked = false;
byte waiting = 0;            /* sleepers on the condition */
bool woken = false;
chan fifo = [N] of { byte };

inline acquire() { atomic { !locked; locked = true } }
inline release() { locked = false }

active proctype client() {
    byte need, carried;
    made[0] = true;
    do
    :: begun < N ->
        acquire();
        need = (begun > K + (BUG == 1) -> begun - K - (BUG == 1) : 0);
        do
        :: need <= applied -> break
        :: else ->           /* Condition.wait: give up the lock and sleep, in one step */
            atomic { locked = false; waiting++; woken = false };
            atomic { woken; waiting--; }
            acquire()
        od;
        carried = (BUG == 4 -> applied : need);
        begun++;
        release();
        assert(made[carried]);
        assert(carried == (begun - 1 > K -> begun - 1 - K : 0));
        assert(begun - applied <= K + 1);
        fifo ! begun - 1
    :: else -> break
    od
}

active proctype executor() {
    byte ticket, turn = 0;
    do
    :: turn < N ->
        fifo ? ticket;
        assert(ticket == turn);
        assert(ticket == applied);
        if
        :: BUG == 2 -> applied++; made[ticket + 1] = true
        :: else ->
            made[ticket + 1] = true;      /* advance(), outside the lock */
            acquire();
            applied++;
            if
            :: BUG == 3 && turn > 0 -> skip
            :: else -> woken = true       /* notify_all */
            fi;
            release()
        fi;
        turn++
    :: else -> break
    od;
done: skip
}

ltl everybody_ends { <> (applied == N && begun == N) }
