"""An agent's memory: what it was told, what of it holds now, who said so, and how a person corrects it. No model.

python examples/10_memory.py --to memories
"""

import argparse

from perdure.memory import Memory

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--to", default="memories", help="the folder of the memory")
args = parser.parse_args()

with Memory(args.to, space="anna") as memory:
    memory.observe("I live in Porto. My cat is called Miso.", speaker="Anna", source="chat 1", at="2024-03-02", key="1")
    memory.observe("I live in Lisbon now.", speaker="Anna", source="chat 7", at="2025-01-20", key="2")
    memory.observe("The flight to Oslo leaves at 9.", role="tool", source="mail", at="2025-01-21", key="3")

    for hit in memory.search("Where does Anna live?"):
        fact, told = hit.fact, memory.evidence(hit.fact.evidence)
        print(f"{fact.name} {fact.state}: {fact.text!r}, {told.speaker or told.role} in {told.source}, {told.observed}")

    change = memory.edit("f2", "Her cat is called Mochi.")  # the word of a person stands above what was told
    print([hit.fact.text for hit in memory.search("What is the cat called?", limit=1)])
    print([fact.text for fact in memory.history("f2").facts])
    memory.undo(change.id)
    print(memory.fact("f2").state)
    print(memory.status().evidence, "tellings are kept, whatever was edited")
