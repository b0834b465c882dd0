package model

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// strftime formats as C's strftime in the C locale, for the directives that
// templates use. An unknown one is an error.
func strftime(t time.Time, format string) (string, error) {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
		'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'z': "-0700", 'Z': "MST",
		'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'e': "_2", 'j': "002",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		i++
		trim := i < len(format) && format[i] == '-' // %-d: no padding
		if trim {
			i++
		}
		if i >= len(format) {
			return "", fmt.Errorf("strftime: format %q ends inside a directive", format)
		}
		switch c := format[i]; c {
		case '%':
			b.WriteByte('%')
		case 's':
			b.WriteString(strconv.FormatInt(t.Unix(), 10))
		default:
			layout, ok := layouts[c]
			if !ok {
				return "", fmt.Errorf("strftime: directive %%%c of %q is not implemented", c, format)
			}
			s := t.Format(layout)
			if trim {
				if s = strings.TrimLeft(s, "0 "); s == "" {
					s = "0"
				}
			}
			b.WriteString(s)
		}
	}
	return b.String(), nil
}
