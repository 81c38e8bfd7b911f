# Completes verbs, flags and names of models: the program is asked for what fits.
_twostroke() {
    # Bash cuts words at colons and equals signs too, and names of models have them: so the line itself is read.
    local words
    read -ra words <<< "${COMP_LINE:0:COMP_POINT}"
    [[ "${COMP_LINE:0:COMP_POINT}" == *[[:space:]] ]] && words+=("")
    local last=$((${#words[@]} - 1))
    local word="${words[last]}" cut=""
    [[ "$COMP_WORDBREAKS" == *:* && "$word" == *:* ]] && cut="${word%:*}:"
    [[ "$COMP_WORDBREAKS" == *=* && "${word#"$cut"}" == *=* ]] && cut="${word%=*}="
    local IFS=$'\n'
    COMPREPLY=($(_CLAP_COMPLETE_INDEX=$last TWOSTROKE_COMPLETE=bash "$1" -- "${words[@]}" 2> /dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    [[ "${COMPREPLY[0]}" == */ ]] && compopt -o nospace
}
complete -o bashdefault -o nosort -F _twostroke twostroke
