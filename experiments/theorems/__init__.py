"""Cases that hold the closed forms T1 to T10 against the machine. This room trains nothing."""
