# A stand-in for /lib/functions.sh of OpenWrt, with the functions that uci2yaml
# uses. It reads the file that UCI_FILE names, in the form that uci writes. As
# that one it uses variables that nobody has set, and functions that whoever
# includes it must not replace.
# shellcheck shell=sh disable=SC2034,SC2086,SC2154

append() { # VARIABLE VALUE
	eval "$1=\"\${$1:-} \$2\""
}

config_load() {
	[ -z "$IPKG_INSTROOT" ] || return 0
	uci_count=0
	while IFS= read -r uci_line; do
		eval "set -- $uci_line"
		case ${1:-} in
		config)
			uci_count=$((uci_count + 1))
			uci_type=$2
			uci_name=${3:-cfg$uci_count}
			append uci_sections "$uci_type:$uci_name"
			;;
		option) eval "uci_value_${uci_name}_$2=\$3" ;;
		list)
			eval "uci_number=\$((\${uci_length_${uci_name}_$2:-0} + 1))"
			eval "uci_length_${uci_name}_$2=$uci_number"
			eval "uci_item_${uci_name}_$2_$uci_number=\$3"
			;;
		esac
	done <"$UCI_FILE"
}

config_get() { # VARIABLE SECTION OPTION DEFAULT
	eval "$1=\${uci_value_$2_$3:-\$4}"
}

config_list_foreach() { # SECTION OPTION FUNCTION [ARGUMENTS]
	uci_at=0
	eval "uci_end=\${uci_length_$1_$2:-0}"
	while [ "$uci_at" -lt "$uci_end" ]; do
		uci_at=$((uci_at + 1))
		eval "$3 \"\$uci_item_$1_$2_$uci_at\""
	done
}

config_foreach() { # FUNCTION TYPE
	for uci_each in ${uci_sections:-}; do
		[ "${uci_each%%:*}" != "$2" ] || "$1" "${uci_each#*:}"
	done
}
