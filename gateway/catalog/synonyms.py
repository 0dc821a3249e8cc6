"""Words that tools use for the same thing. One line, one meaning; a word may stand in several."""

from __future__ import annotations

from gateway.catalog.words import stem

TABLE = """
create add make new insert register
delete remove erase destroy drop purge
update edit change modify patch set alter
get fetch read retrieve obtain view show lookup
list enumerate browse show index
search find query lookup locate discover
send post submit deliver publish
run execute start launch invoke trigger
stop cancel halt kill terminate abort end
open navigate visit go goto
close resolve finish complete
upload push attach
download pull export
import load ingest
copy duplicate clone
move transfer relocate
rename retitle
merge combine join
compare diff difference
convert transform translate
calculate compute evaluate
schedule book plan reserve
subscribe follow watch
approve accept confirm
reject decline deny
enable activate
disable deactivate
click press tap
type enter input fill write
capture screenshot snapshot
repository repo
issue ticket bug
task todo
comment reply note
branch ref
message dm chat msg
email mail
channel room
meeting event appointment
calendar agenda
user member person people account
customer client
team group
file document attachment
directory folder
picture image photo
movie film video
song track music audio
website web page url link
database db
table sheet
row record entry
column field attribute
chart graph plot diagram
metric stat statistic
log trace
pod container
server host instance machine
weather forecast climate
price cost quote
payment charge invoice
address place location
""".strip()


def _table() -> dict[str, tuple[str, ...]]:
    groups: dict[str, set[str]] = {}
    for line in TABLE.splitlines():
        stems = {stem(word) for word in line.split()}
        for word in stems:
            groups.setdefault(word, set()).update(stems - {word})
    return {word: tuple(sorted(others)) for word, others in groups.items()}


SYNONYMS = _table()
"""Stem → the stems that mean about the same."""
