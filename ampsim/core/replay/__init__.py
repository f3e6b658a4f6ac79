"""What a rule would have done: folding found_inf, ceilings, the event-driven engine, sweeps of many rules."""
