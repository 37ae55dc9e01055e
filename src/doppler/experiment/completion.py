"""Shell completion of ``doppler`` in bash and zsh: commands, config groups and options."""

from collections.abc import Iterable

from doppler.experiment.resolvers import choices_of, groups

SHELLS = ("bash", "zsh")
# Options of doppler run that are often set and do not name a config group.
_VALUES = ("seed=", "output_dir=", "overwrite=true", "measure.force=true", "--help", "--cfg job")
# Bash splits words at "=", so the offered words must omit everything before it.
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
    """Return the completion script for a shell.

    Args:
        shell: one of SHELLS.
        commands: the subcommands of ``doppler``.
        place_options: options of ``doppler place``, without ``=``.
    """
    run = [f"{group}={choice}" for group in groups() for choice in choices_of(group)]
    script = _SCRIPT.format(
        run=" ".join([*run, *_VALUES]),
        place=" ".join(f"{name}=" for name in place_options),
        commands=" ".join(commands),
    )
    before = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return before + script
