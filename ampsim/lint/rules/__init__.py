"""One file per rule: the code, the sentence, the law, a wrong and a right example, and what finds it."""
