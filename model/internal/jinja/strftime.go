package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftime formats a naive time as Python does on glibc in the C locale: the
// flags -, _, 0, ^ and #, and every directive but the locale's alternatives. An
// unknown one stays as it is written.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		start := i
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		i++
		flag := byte(0)
		if i < len(format) && strings.IndexByte("-_0^#", format[i]) >= 0 {
			flag = format[i]
			i++
		}
		if i >= len(format) {
			b.WriteString(format[start:])
			break
		}
		s, pad, ok := directive(t, format[i])
		if !ok {
			b.WriteString(format[start : i+1])
			continue
		}
		switch {
		case flag == '-' && pad != 0:
			s = strings.TrimLeft(s[:len(s)-1], " 0") + s[len(s)-1:]
		case flag == '_' && pad == '0':
			digits := strings.TrimLeft(s[:len(s)-1], "0") + s[len(s)-1:]
			s = strings.Repeat(" ", len(s)-len(digits)) + digits
		case flag == '0' && pad == ' ':
			s = strings.ReplaceAll(s, " ", "0")
		case flag == '^' || flag == '#' && format[i] != 'p':
			s = strings.ToUpper(s)
		case flag == '#':
			s = strings.ToLower(s)
		}
		b.WriteString(s)
	}
	return b.String()
}

// directive gives the text of one directive, and the padding of a number.
func directive(t time.Time, c byte) (s string, pad byte, ok bool) {
	layouts := map[byte]string{
		'Y': "2006", 'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'p': "PM", 'P': "pm",
		'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'r': "03:04:05 PM",
		'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
	}
	zero := map[byte]string{'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'j': "002"}
	if l, ok := layouts[c]; ok {
		return t.Format(l), 0, true
	}
	if l, ok := zero[c]; ok {
		return t.Format(l), '0', true
	}
	year, week := t.ISOWeek()
	weekday := int(t.Weekday())
	two := func(n int) (string, byte, bool) { return fmt.Sprintf("%02d", n), '0', true }
	blank := func(n int) (string, byte, bool) { return fmt.Sprintf("%2d", n), ' ', true }
	switch c {
	case '%':
		return "%", 0, true
	case 'n':
		return "\n", 0, true
	case 't':
		return "\t", 0, true
	case 'z', 'Z': // the time is naive
		return "", 0, true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), 0, true
	case 's':
		return fmt.Sprint(t.Unix()), 0, true
	case 'e':
		return blank(t.Day())
	case 'k':
		return blank(t.Hour())
	case 'l':
		return blank((t.Hour()+11)%12 + 1)
	case 'C':
		return two(t.Year() / 100)
	case 'G':
		return fmt.Sprint(year), 0, true
	case 'g':
		return two(year % 100)
	case 'V':
		return two(week)
	case 'U':
		return two((t.YearDay() + 6 - weekday) / 7)
	case 'W':
		return two((t.YearDay() + 6 - (weekday+6)%7) / 7)
	case 'u':
		return fmt.Sprint((weekday+6)%7 + 1), 0, true
	case 'w':
		return fmt.Sprint(weekday), 0, true
	}
	return "", 0, false
}
