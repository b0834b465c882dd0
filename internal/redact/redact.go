// Package redact takes secrets out of text that leaves the machine: logs and
// configurations in a bug report.
package redact

import "regexp"

// Mark stands where a secret was.
const Mark = "[removed]"

// rules find what is a secret by its form, or by the name it is given to. Where
// a rule has a group named keep, the rest of the match goes.
var rules = []*regexp.Regexp{
	// Key material, also cut off in the middle.
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`),
	// Join tokens of this system: the authority's fingerprint may stay.
	regexp.MustCompile(`(?P<keep>skein1\.[0-9a-f]{64}\.)[A-Za-z0-9_-]+`),
	// Tokens of services, by their prefixes.
	regexp.MustCompile(`\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)`),
	// HTTP credentials and those inside an address.
	regexp.MustCompile(`(?i)(?P<keep>\b(?:authorization|proxy-authorization|cookie|set-cookie|x-api-key)"?\s*[:=]\s*"?(?:(?:bearer|basic|token)\s+)?)[^\s",;]+`),
	regexp.MustCompile(`(?i)(?P<keep>\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?P<keep>[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?:@)`),
	// Values of names that say what they are: YAML, JSON, shell and query forms.
	// A file's name or a number of tokens is no secret.
	regexp.MustCompile(`(?im)(?P<keep>[A-Za-z0-9_.-]*(?:password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential|auth[_-]?token|access[_-]?token|join[_-]?token|session[_-]?token|bearer[_-]?token)s?"?\s*[:=]\s*)(?:\[removed\]|"[^"\n]+"|'[^'\n]+'|[^\s"',;&}\]]+)`),
}

// Text returns s without what looks like a secret, and how many were found.
func Text(s string) (string, int) {
	found := 0
	for _, r := range rules {
		keep := r.SubexpIndex("keep")
		s = r.ReplaceAllStringFunc(s, func(m string) string {
			if keep < 0 {
				found++
				return Mark
			}
			kept := r.FindStringSubmatch(m)[keep]
			if m == kept+Mark || m == kept+`"`+Mark+`"` {
				return m // an earlier rule was there
			}
			found++
			end := ""
			if m[len(m)-1] == '@' {
				end = "@"
			}
			return kept + Mark + end
		})
	}
	return s, found
}
