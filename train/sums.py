"""Small sums worked out digit by digit inside <think> ... </think>.

Column arithmetic from the right, as taught in school.  Every step reads two
digits and a carry, so a small model only has to learn the one-digit table and
where to look.
"""

QUESTIONS = (
    "What is {sum}?", "What is {sum}?", "What is {sum}?", "{sum}", "{sum} =",
    "Calculate {sum}.", "Work out {sum}.", "How much is {sum}?",
    "Can you work out {sum}?", "Please calculate {sum}.",
)


def add(a, b):
    """Working and answer of a + b."""
    steps, carry = [], 0
    columns = max(len(str(a)), len(str(b)))
    for column in range(columns):
        x, y = a // 10**column % 10, b // 10**column % 10
        total = x + y + carry
        step = f"{x} + {y}{' + 1' if carry else ''} = {total}"
        carry = total // 10
        if column < columns - 1:
            step += f", write {total % 10}" + (", carry 1" if carry else "")
        steps.append(step + ".")
    return " ".join(steps), a + b


def subtract(a, b):
    """Working and answer of a - b, where a >= b."""
    steps, borrow = [], 0
    columns = len(str(a))
    for column in range(columns):
        x, y = a // 10**column % 10, b // 10**column % 10
        owed = " - 1" if borrow else ""
        if x - y - borrow < 0:
            digit = x + 10 - y - borrow
            step, borrow = f"borrow, 1{x} - {y}{owed} = {digit}", 1
        else:
            digit = x - y - borrow
            step, borrow = f"{x} - {y}{owed} = {digit}", 0
        if column < columns - 1:
            step += f", write {digit}"
        steps.append(step + ".")
    return " ".join(steps), a - b


def numbers(rng):
    """Two operands of one to three digits; wider ones more often, since they are harder."""
    def operand():
        digits = rng.choice((1, 2, 2, 2, 3, 3))
        return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)

    return operand(), operand()


def one_sum(rng):
    """A question, its working and its answer."""
    a, b = numbers(rng)
    if rng.random() < 0.4:
        a, b = max(a, b), min(a, b)
        working, answer = subtract(a, b)
        text = f"{a} - {b}"
    else:
        working, answer = add(a, b)
        text = f"{a} + {b}"
    return rng.choice(QUESTIONS).format(sum=text), working, str(answer)


def conversation(rng, turns, weight=1.0):
    """Some sums in a row, each token of which counts `weight` in training.  Clients often drop old reasoning from the history, so
    half of the conversations show earlier answers without their working."""
    messages = []
    bare = rng.random() < 0.5
    for turn in range(turns):
        question, working, answer = one_sum(rng)
        messages.append({"role": "user", "content": question})
        if bare and turn < turns - 1:
            # An answer without working must not be learned, only read: weight 0.
            messages.append({"role": "assistant", "content": answer, "weight": 0.0})
        else:
            content = f"<think>{working}</think>{answer}"
            messages.append({"role": "assistant", "content": content, "weight": weight})
    return messages
