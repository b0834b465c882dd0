package skein_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	testRef  = regexp.MustCompile("`([\\w./-]+_test\\.go): ((?:Test|Fuzz)\\w+(?:, (?:Test|Fuzz)\\w+)*)`")
	dataRef  = regexp.MustCompile("`([\\w./-]+/testdata/[\\w./-]+)`")
	testName = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
)

// checkPage says what a page that names tests gets wrong: files that are not
// there, tests that are not in the file named for them, test names outside of
// any reference, data that is gone. n counts its references.
func checkPage(page string) (n int, problems []string) {
	known := map[string]bool{} // names referred to properly
	for _, m := range testRef.FindAllStringSubmatch(page, -1) {
		have, err := testsIn(m[1])
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		for _, name := range strings.Split(m[2], ", ") {
			n++
			known[name] = true
			if !have[name] {
				problems = append(problems, fmt.Sprintf("%s has no %s", m[1], name))
			}
		}
	}
	for _, name := range testName.FindAllString(testRef.ReplaceAllString(page, ""), -1) {
		if !known[name] {
			problems = append(problems, fmt.Sprintf("%s is named without its file: write `file_test.go: %s`", name, name))
		}
	}
	for _, m := range dataRef.FindAllStringSubmatch(page, -1) {
		if _, err := os.Stat(m[1]); err != nil {
			problems = append(problems, err.Error())
		}
	}
	return n, problems
}

// testsIn lists a file's test and fuzz functions, whatever its build tags.
func testsIn(path string) (map[string]bool, error) {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	have := map[string]bool{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && len(fn.Type.Params.List) == 1 && testName.MatchString(fn.Name.Name) {
			have[fn.Name.Name] = true
		}
	}
	return have, nil
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, problems := checkPage(string(text))
	if n == 0 {
		t.Errorf("%s names no test", path)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", path, p)
	}
	return string(text)
}

func TestPromisesNameTheirTests(t *testing.T) {
	sections := strings.Split(readPage(t, "docs/promises.md"), "\n## ")[1:]
	if len(sections) != 8 {
		t.Fatalf("%d sections, want P1 to P8", len(sections))
	}
	for i, s := range sections {
		if !strings.HasPrefix(s, fmt.Sprintf("P%d ", i+1)) {
			t.Errorf("section %d is not P%d: %.40q", i+1, i+1, s)
		}
		if !testRef.MatchString(s) {
			t.Errorf("P%d names no test", i+1)
		}
		for _, part := range []string{"\nHow: ", "\nLimits: "} {
			if !strings.Contains(s, part) {
				t.Errorf("P%d lacks %q", i+1, strings.TrimSpace(part))
			}
		}
	}
}

func TestCasesNameTheirTests(t *testing.T) {
	now, later, ok := strings.Cut(readPage(t, "docs/cases.md"), "\n## What comes later\n")
	if !ok {
		t.Fatal("docs/cases.md has no section of later cases")
	}
	rows := func(text string) (out []string) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| area ") {
				out = append(out, line)
			}
		}
		return out
	}
	for _, row := range rows(now) {
		if !testRef.MatchString(row) {
			t.Errorf("a case without a test: %s", row)
		}
	}
	if n, m := len(rows(now)), len(rows(later)); n < 61 || n+m < 66 {
		t.Errorf("%d cases with tests and %d later ones, of at least 66: a case was dropped", n, m)
	}
}

func TestCheckPageCanFail(t *testing.T) {
	for page, want := range map[string]string{
		"`docs_test.go: TestCheckPageCanFail, TestNowhere`":           "docs_test.go has no TestNowhere",
		"`nowhere_test.go: TestNowhere`":                              "nowhere_test.go",
		"see TestNowhere":                                             "without its file",
		"`docs_test.go: TestCheckPageCanFail` on `x/testdata/no.txt`": "no.txt",
		"`docs_test.go: TestCheckPageCanFail`":                        "",
	} {
		_, problems := checkPage(page)
		if got := strings.Join(problems, "\n"); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", page, got, want)
		}
	}
}
