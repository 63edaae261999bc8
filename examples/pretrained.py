"""Released weights: ask a trained N-th farthest model questions.

    python examples/pretrained.py                       # the first N-th farthest model in the package
    python examples/pretrained.py --weights runs/first  # or any N-th farthest run of `rmc train`

Prints a few questions with the model's answers and how sure it is, and its accuracy on fresh ones.
"""

import argparse

import torch

from relational_rnn import pretrained


def main(weights: str | None = None, questions: int = 3, samples: int = 2000) -> float:
    if weights is None:
        named = [name for name in pretrained.available() if name.startswith("nth-farthest")]
        if not named:
            raise SystemExit("no N-th farthest weights are in this package; give --weights RUN")
        weights = named[0]
    try:
        model, config, about = pretrained.load(weights)
    except ValueError as error:
        raise SystemExit(f"--weights: {error}") from error
    if about["experiment"] != "nth-farthest":
        raise SystemExit(f"--weights {weights} is of {about['experiment']}; allowed: nth-farthest")
    task = config.task
    size = f"{task.vectors} vectors of {task.dims} dimensions"
    print(f"{weights}: {size}, seed {about['seed']}, {about['step']:,} updates")

    generator = torch.Generator().manual_seed(3 * 2**30)  # seeds from 2**31 on are never trained on
    x, answers = task.batch(samples, generator=generator)  # [vectors, samples, features], [samples]
    with torch.no_grad():
        chances = model(x).softmax(-1)  # [samples, vectors]
    guesses = chances.argmax(-1)
    for i in range(questions):
        # Features of a step: the vector, then one-hot its label, n and m.
        labels, n, m = (x[:, i, task.dims :].unflatten(-1, (3, -1)).argmax(-1)).unbind(-1)
        order = "farthest" if task.convention == "farthest" else "nearest"
        print(
            f"vectors {labels.tolist()}: which is number {n[0] + 1} of the {order} from vector {m[0]}? "
            f"{guesses[i]} ({100 * chances[i, guesses[i]]:.0f} %), right is {answers[i]}"
        )
    accuracy = (guesses == answers).float().mean().item()
    print(f"accuracy on {samples:,} fresh questions: {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights")
    main(parser.parse_args().weights)
