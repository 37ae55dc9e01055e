"""Completion of ``doppler`` in bash and zsh: commands, groups, choices, options of place."""

from collections.abc import Iterable

from doppler.experiment.resolvers import choices_of, groups

SHELLS = ("bash", "zsh")
# Options of doppler run that are no group, and are set most often.
_VALUES = ("seed=", "output_dir=", "overwrite=true", "measure.force=true", "--help", "--cfg job")
# In bash "=" ends a word: what is offered must leave out what stands before it.
_SCRIPT = """\
_doppler() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" words
  local current="${{line##* }}"
  case "${{COMP_WORDS[1]}}" in
    run) words="{run}" ;;
    place) words="{place}" ;;
    report) words="--out" ;;
    *) words="{commands}" ;;
  esac
  [[ $COMP_CWORD -le 1 ]] && words="{commands}"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ $current == *=* ]]; then
    COMPREPLY=("${{COMPREPLY[@]#"${{current%%=*}}="}}")
  fi
}}
complete -o nospace -o default -F _doppler doppler
"""


def completion(shell: str, commands: Iterable[str], place_options: Iterable[str]) -> str:
    """The script that a shell reads.

    Args:
        shell: one of SHELLS.
        commands: of ``doppler``.
        place_options: of ``doppler place``, without ``=``.
    """
    run = [f"{group}={choice}" for group in groups() for choice in choices_of(group)]
    script = _SCRIPT.format(
        run=" ".join([*run, *_VALUES]),
        place=" ".join(f"{name}=" for name in place_options),
        commands=" ".join(commands),
    )
    before = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return before + script
