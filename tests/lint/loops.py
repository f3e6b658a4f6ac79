"""Beginnings and ends of loops, of which the tests make whole ones."""

MAKES = "scaler = torch.amp.GradScaler()\n"
LOOP = """\
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
"""
END = "    scaler.step(optimizer)\n    scaler.update()\n"
