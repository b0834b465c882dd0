package redact

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSecretsGo(t *testing.T) {
	token := "skein1." + strings.Repeat("ab", 32) + "."
	for name, c := range map[string]struct{ in, want string }{
		"join token":     {"joined with " + token + "s3cr3t_value-x now", "joined with " + token + Mark + " now"},
		"pem":            {"a\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\nb", "a\n" + Mark + "\nb"},
		"pem cut":        {"-----BEGIN PRIVATE KEY-----\nMHcC", Mark},
		"openai":         {"key sk-proj-abcdefghij0123456789 used", "key " + Mark + " used"},
		"hub":            {"hf_abcdefghijklmnopqrst", Mark},
		"bearer":         {"Authorization: Bearer abc.def-123456789", "Authorization: Bearer " + Mark},
		"bearer json":    {`{"authorization":"Bearer abc.def-123456789"}`, `{"authorization":"Bearer ` + Mark + `"}`},
		"url":            {"get https://user:pa55@host/x", "get https://user:" + Mark + "@host/x"},
		"yaml":           {"judge:\n  api_key: abcdef\n  model: m", "judge:\n  api_key: " + Mark + "\n  model: m"},
		"json":           {`{"client_secret": "ab cd", "x": 1}`, `{"client_secret": ` + Mark + `, "x": 1}`},
		"env":            {"AWS_SECRET_ACCESS_KEY=abc/def+1 go", "AWS_SECRET_ACCESS_KEY=" + Mark + " go"},
		"query":          {"GET /v1?api_key=zzz&n=2", "GET /v1?api_key=" + Mark + "&n=2"},
		"jwt":            {"t=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc", "t=" + Mark},
		"numbers stay":   {"tokens: 12 max_new_tokens=64 token_budget: 300", "tokens: 12 max_new_tokens=64 token_budget: 300"},
		"files stay":     {"--token-file /etc/skein/token", "--token-file /etc/skein/token"},
		"digests stay":   {"blake3:" + strings.Repeat("0f", 32), "blake3:" + strings.Repeat("0f", 32)},
		"special tokens": {"eos_token: <|im_end|>", "eos_token: <|im_end|>"},
	} {
		got, n := Text(c.in)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.in != c.want, n > 0, name)
		again, _ := Text(got)
		require.Equal(t, got, again, "%s: twice is once", name)
	}
}

func FuzzText(f *testing.F) {
	f.Add("password: hunter2")
	f.Add("-----BEGIN PRIVATE KEY-----")
	f.Fuzz(func(t *testing.T, s string) {
		const secret = "skein1.0000000000000000000000000000000000000000000000000000000000000000.VERYSECRETVALUE"
		got, _ := Text(s + "\n" + secret + "\n" + s)
		if strings.Contains(got, "VERYSECRETVALUE") {
			t.Fatalf("%q left in %q", secret, got)
		}
	})
}
