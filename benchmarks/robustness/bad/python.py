"""Calls from Python with values of the wrong type, sign and size."""

import dataclasses
import random

from benchmarks.robustness.bad.case import Cases, Expect, have

SMALL = {
    "model": {"context_length": "16", "d_model": "16", "num_layers": "1", "num_heads": "2"},
    "data": {"paths": "('text.txt',)", "tokenizer": "'bytes'"},
    "update": {"warmup_steps": "1"},
    "run": {"max_steps": "1", "batch_size": "2", "threads": "1", "eval_batches": "1", "compile": "'off'"},
}
CLASSES = {"model": "ModelConfig", "data": "DataConfig", "update": "UpdateConfig", "run": "RunConfig"}
WRONG = ("'x'", "None", "[]", "{}", "object()", "math.nan", "-1", "True", "2.0", "2.5", "np.int64(2)", "b'x'", "1j",
         "lambda: 1", "torch.tensor(2)", "np.array([1, 2])", "10**30", "''", "(1,)", "math.inf", "'2'")  # fmt: skip
INTERVALS = {"Count": "int", "Whole": "int", "BytesAndMore": "int", "Positive": "float", "NotNegative": "float",
             "Share": "float", "Fraction": "float", "Annotated[int": "int", "Annotated[float": "float"}  # fmt: skip
"""Annotations that are numbers of an interval."""
ENDLESS = {"max_steps", "eval_batches", "gradient_accumulation_steps"}


def wish(annotation: str, name: str, value: str) -> Expect:
    """Whether any user would want the value refused where the annotation stands."""
    for interval, kind in INTERVALS.items():
        annotation = annotation.replace(interval, kind)
    if value in ("None", "{}", "[]", "'2'", "True", "2.0", "torch.tensor(2)", "np.int64(2)", "''", "(1,)"):
        sure = value == "{}" or (value in ("[]", "(1,)") and "tuple" not in annotation) or (
            value == "None" and "None" not in annotation and "bool" not in annotation)  # fmt: skip
        return "refuse" if sure else "any"
    if "str" in annotation and "tuple" not in annotation:
        return "any" if value in ("'x'",) else "refuse"
    if "bool" in annotation:
        return "any" if value in ("-1", "10**30", "2.5", "math.inf") else "refuse"
    if "Literal" in annotation or annotation[:1].isupper():
        return "refuse"
    if "tuple" in annotation:
        return "any" if value in ("'x'", "-1", "np.array([1, 2])", "b'x'") else "refuse"
    if value in ("-1", "10**30", "math.inf"):
        return "any" if value != "-1" or name == "seed" else "refuse"
    return "any" if "float" in annotation and value == "2.5" else "refuse"


def trained(section: str, name: str, value: str) -> str:
    """The code of a training with one field of one's own."""
    sections = []
    for key, entries in SMALL.items():
        mine = entries | ({name: value} if key == section else {})
        sections.append(f"{key}=limpid.{CLASSES[key]}(" + ", ".join(f"{k}={v}" for k, v in mine.items()) + ")")
    return f"limpid.train(limpid.TrainConfig({', '.join(sections)}))"


WATCHED = """
model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randint(9, (2, 5))
loss = torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
"""

REFUSED = r"""
limpid.load(None)
limpid.load(3)
limpid.load('')
limpid.load(['runs/a'])
limpid.load('runs/zzz')
limpid.load('text.txt')
limpid.load('runs/a@99')
limpid.load('x' * 10**5)
limpid.load('runs/a\0')
limpid.load('\udfff')
limpid.generate('runs/a', 3)
limpid.generate('runs/a', [])
limpid.generate('runs/a', [3])
limpid.generate('runs/a', ['a', {'role': 'user', 'content': 'x'}])
limpid.generate('runs/a', [{'role': 'user'}])
limpid.generate('runs/a', [{'role': 3, 'content': 'x'}])
limpid.generate('runs/a', [{'content': 'x'}])
limpid.generate('runs/a', [{'role': 'user', 'content': object()}])
limpid.generate('runs/a', [[]])
limpid.generate('runs/a', b'x')
limpid.generate('runs/a', 'x' * 10**4)
limpid.generate('runs/a', 'x', temperature=-1)
limpid.generate('runs/a', 'x', temprature=1)
limpid.generate('runs/a', 'x', max_new_tokens=0)
limpid.generate('runs/a', 'x', max_new_tokens=2.5)
limpid.generate('runs/a', 'x', stop='')
limpid.generate('runs/a', 'x', weights='fp3')
limpid.generate('runs/a', 'x', reporter=3)
limpid.generate('runs/a', '\udfff')
limpid.generate(None, 'x')
limpid.generate((1, 2), 'x')
limpid.generate((limpid.load('runs/a')[0],), 'x')
limpid.generate(limpid.load('runs/a')[::-1], 'x')
limpid.generate('nobody/nothing', 'x')
limpid.generate('runs/a+runs/a', 'x')
limpid.generate('+', 'x')
limpid.generate('@', 'x')
limpid.generate('a@b@c', 'x')
limpid.generate('../../x/y', 'x')
limpid.generate('a/b/c', 'x')
limpid.generate('a//b', 'x')
limpid.evaluate('runs/a', 'zzz')
limpid.evaluate('runs/a', 3)
limpid.evaluate('runs/a', text='')
limpid.evaluate('runs/a', text=3)
limpid.evaluate('runs/a', text='\udfff')
limpid.evaluate(limpid.load('runs/a'))
limpid.evaluate('runs/a', text='abc', context=10**9)
limpid.evaluate('runs/a', text='abc', contxt=3)
limpid.evaluate('runs/a', text='abc', confidence=2)
limpid.evaluate('runs/a', against='zzz')
limpid.evaluate('runs/a', tasks='zzz')
limpid.evaluate('runs/a', text='abc').metric('los')
limpid.evaluate('runs/a', tasks=3)
limpid.compare('runs/a', 'runs/a:what')
limpid.compare('runs/a', 3)
limpid.compare('runs/a', 'zzz')
limpid.compare('runs/a', 'runs/a', text='')
limpid.compare('runs/a', 'runs/a', backward=3)
limpid.inspect('runs/a', position=10**6)
limpid.inspect('runs/a', position=2.5)
limpid.inspect('runs/a', word=3)
limpid.inspect('runs/a', word=('a', 'b'))
limpid.inspect('runs/a', token='abcdef')
limpid.inspect('runs/a', text='')
limpid.inspect(limpid.load('runs/a'))
limpid.inspect('runs/a', landscape='x')
limpid.inspect('runs/a').draw(3)
limpid.plan('gpt2', compute=1e20)
limpid.plan(compute=-1)
limpid.plan(compute='x')
limpid.plan(params=math.inf)
limpid.plan(compute=1e20, tokens=1e9)
limpid.plan('nobody/nothing')
limpid.compress('runs/a', 'zzz')
limpid.compress('runs/a', 'runs')
limpid.compress('runs/a', 3)
limpid.compress('runs/a', '')
limpid.decompress('zzz.limpid')
limpid.decompress(3)
limpid.train(objective='dpo')
limpid.train(batches=lambda step: 1)
limpid.resume('runs/a', 9, objective=3)
limpid.trace('runs/a', 2, output='x')
limpid.trace('runs/a', 2, output=3)
limpid.trace('runs/a').array('nothing')
limpid.trace('runs/a').explain('logits', (9, 9, 9))
limpid.trace('runs/a', text='abc').rows()
limpid.load((1,))
limpid.trace(None)
limpid.trace('runs/a', step=2.5)
limpid.trace('runs/a', step=0)
limpid.trace('runs/a', step=99)
limpid.trace('runs/a', step=math.nan)
limpid.trace('runs/a', step=[2])
limpid.trace('runs/a', step=10**30)
limpid.trace('llama')
limpid.trace('llama', text=3)
limpid.trace('llama', text='')
limpid.trace('llama', text=b'hello')
limpid.trace('llama', step=3, text='hello')
limpid.trace('llama', text=['hello', 'you'])
limpid.resume(None)
limpid.resume('runs/zzz')
limpid.resume(3)
limpid.resume('runs/a', max_steps=-1)
limpid.resume('runs/a', max_steps=2)
limpid.resume('runs/a', max_steps=7.5)
limpid.resume('runs/a', max_steps=math.nan)
limpid.resume('llama', max_steps=7)
limpid.resume('runs/a', reporter='loud', max_steps=7)
limpid.train(3)
limpid.train('runs/a')
limpid.train({'runs': {}})
limpid.train(limpid.RunConfig(max_steps=1))
limpid.train(limpid.TrainConfig)
limpid.train(limpid.TrainConfig(model=3))
limpid.train(limpid.TrainConfig(model=limpid.RunConfig()))
limpid.train(limpid.TrainConfig(run={'max_steps': 1}))
limpid.TrainConfig(modle=limpid.ModelConfig())
limpid.ModelConfig(16, 16, 16, 1, 2, 2, 2, 2, 2, 2)
limpid.train(config=None, nmae='x')
limpid.train(config, name=3)
limpid.train(config, name='')
limpid.train(config, name='a\0b')
limpid.train(config, name='a')
limpid.train(config, reporter=3)
limpid.train(config, deadline=3)
limpid.train(config, deadline='tomorrow')
limpid.train(config, step_budget='x')
limpid.watch(None)
limpid.watch('model')
limpid.watch(3, 4)
limpid.watch(model, 'adam')
limpid.watch(model, optimizer, every=0)
limpid.watch(model, optimizer, every=-5)
limpid.watch(model, optimizer, every='often')
limpid.watch(model, optimizer, every=math.nan)
limpid.watch(model, optimizer, rules=['nope'])
limpid.watch(model, optimizer, rules=3)
limpid.watch(model, optimizer, total_steps=-1)
limpid.watch(model, optimizer, total_steps='x')
limpid.watch(model, optimizer, output='text.txt').step(loss, batch)
limpid.watch(model, optimizer, output=3)
limpid.watch(model, optimizer, scheduler='cosine')
limpid.watch(model, optimizer, scaler=3)
limpid.watch(model, optimizer, writer=3)
limpid.watch(optimizer, model)
limpid.watch(model, optimizer, loss)
limpid.plan(3)
limpid.plan('')
limpid.plan(['gpt2'])
limpid.plan('gpt2', devices='x')
limpid.plan('gpt2', devices=-1)
limpid.plan('gpt2', devices=1.5)
limpid.plan('gpt2', devcies=8)
limpid.plan('gpt2', tokens=math.nan)
limpid.plan('gpt2', tokens=-1)
limpid.plan('gpt2', zero=7)
limpid.plan('gpt2', device='potato')
limpid.plan('gpt2', device=3)
limpid.plan('gpt2', precision='fp3')
limpid.plan('gpt2').figure('memory.nothing')
limpid.plan('gpt2').figure(3)
limpid.plan('gpt2', batch_size=0)
limpid.plan('gpt2', context_length='long')
limpid.plan(limpid.RunConfig())
limpid.maths.softmax('abc')
limpid.maths.softmax(None)
limpid.maths.softmax(object())
limpid.maths.softmax([1, 'a'])
limpid.maths.softmax([[1], [2, 3]])
limpid.maths.softmax([1, 2], temperature='warm')
limpid.maths.softmax([1, 2], temperature=math.nan)
limpid.maths.softmax([1j, 2])
limpid.maths.softmax([1, 2], temprature=1)
limpid.maths.dpo.backward('a', -1.0, -2.0, -1.5, -1.5)
limpid.maths.dpo.backward(1.0)
limpid.maths.dpo(1.0, None, -2.0, -1.5)
limpid.maths.dpo([1.0, 2.0], [1.0], [1.0, 2.0, 3.0], [1.0])
limpid.maths.RMSNorm(eps=-1.0)
limpid.maths.RMSNorm(eps='x')
limpid.maths.RMSNorm(eps=math.nan)
limpid.maths.RMSNorm(eps=None)
limpid.maths.RMSNorm().forward('x')
"""
"""Nobody would want these to work."""
OPEN = r"""
limpid.load(b'runs/a')
limpid.trace('runs/a', step='2')
limpid.trace('runs/a', step=-1)
limpid.resume('runs/a', max_steps='8')
limpid.TrainConfig(model=3)
limpid.watch(model, optimizer, rules='not-finite')
limpid.watch(model, optimizer, say=3)
limpid.watch(model, optimizer, first_step=-9)
limpid.watch(model, optimizer).step('loss')
limpid.watch(model, optimizer).step(None)
limpid.watch(model, optimizer).step(torch.zeros(2, 3), batch)
limpid.watch(model, optimizer).step(loss, 'batch')
limpid.watch(model, optimizer).step(math.nan)
limpid.watch(model, optimizer).step(loss, {'a': object()})
d = limpid.watch(model, optimizer); d.close(); d.close(); d.step(loss, batch)
limpid.watch(model, optimizer).preflight(None)
limpid.watch(model, optimizer).preflight(batch, loss=3)
limpid.watch(model, optimizer).preflight(batch, loss=lambda m, b: 'x')
limpid.watch(model, optimizer).preflight(batch, loss=lambda m, b: 1 / 0)
limpid.plan('gpt2', tokens='1T')
limpid.plan('gpt2', zero=None)
limpid.plan('gpt2', memory=math.inf)
limpid.maths.softmax([1, 2], temperature=-1)
limpid.maths.softmax([math.nan, 1])
"""
"""These may work, or be refused; `config` is a small training's."""


def cases(rng: random.Random) -> Cases:
    import limpid

    found = Cases("python")
    found.add("plain", "as it should be", code=trained("run", "seed", "0"), lay=(have("text.txt"),), expect="accept")
    for section, owner in CLASSES.items():
        for field in dataclasses.fields(getattr(limpid, owner)):
            for value in rng.sample(WRONG, 3):
                if field.name in ENDLESS and value in ("10**30", "math.inf"):
                    continue
                found.add(f"{section}.{field.name}={value}", f"{owner}.{field.name} is {field.type}",
                          code=trained(section, field.name, value), lay=(have("text.txt"),),
                          expect=wish(str(field.type), field.name, value),
                          names=(field.name, field.name.replace("_", "-"), value.strip("'")))  # fmt: skip
    calls: list[tuple[str, Expect]] = [(code, "refuse") for code in REFUSED.split("\n") if code]
    calls += [(code, "any") for code in OPEN.split("\n") if code]
    for code, expect in calls:
        before = WATCHED if "watch(model" in code or "watch(optimizer" in code else ""
        before += f"config = {trained('run', 'seed', '0')[13:-1]}\n" if "train(config," in code else ""
        found.add(f"call-{code[7:60]}", "a call with something wrong", code=before + code, expect=expect,
                  lay=(have("runs/a", "llama", "text.txt"),), writes=("runs/a/*",))  # fmt: skip
    names = [
        n for n in dir(limpid.maths) if not n.startswith("_") and n.islower() and callable(getattr(limpid.maths, n))
    ]
    for name in rng.sample(sorted(names), min(40, len(names))):
        given = ", ".join(rng.choice(["'x'", "None", "object()", "{}"]) for _ in range(rng.randint(1, 3)))
        found.add(
            f"maths-{name}", "mathematics of what is no number", code=f"limpid.maths.{name}({given})", expect="refuse"
        )
    return found
