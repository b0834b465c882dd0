package task

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/skein-rl/skein/agent/tool"
	"github.com/skein-rl/skein/reward"
	"github.com/skein-rl/skein/rollout"
)

var bfclOptions = []string{"dir", "heldout_share"}

const (
	bfclQuestions = "BFCL_v4_simple_python.json"
	bfclAnswers   = "possible_answer/BFCL_v4_simple_python.json"
	bfclSystem    = "Answer with one call of a tool that fits the question."
)

// BFCL is the category simple_python of the Berkeley Function Calling
// Leaderboard, v4: one question, one function, one right call. The episode ends
// with the first calling turn; the score is reward.ASTReference's: 1 for the
// leaderboard checker's "valid", at most 0.2 for a near miss.
//
// A row belongs to the held-out split by the hash of its id, so that a row
// stays on its side whatever else is in the files.
type BFCL struct {
	train, heldout []bfclRow
	identity       string
}

type bfclRow struct {
	id       string
	question string
	spec     tool.Spec
	ref      *reward.ASTReference
	demo     []rollout.Turn
}

func openBFCL(o Options) (*BFCL, error) {
	dir := o["dir"]
	if dir == "" {
		return nil, errors.New("no data; set option dir to the folder bfcl_eval/data of an unpacked bfcl-eval wheel")
	}
	share := 0.25
	if v, ok := o["heldout_share"]; ok {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f > 0 && f < 1) {
			return nil, fmt.Errorf("heldout_share=%q: give a share between 0 and 1", v)
		}
		share = f
	}
	return OpenBFCL(dir, share)
}

// OpenBFCL reads question and answer files below dir (bfcl_eval/data of the
// bfcl-eval wheel). Errors name file and id: a row that is not JSON, a question
// without an answer, more than one function or turn, an unknown type.
func OpenBFCL(dir string, heldoutShare float64) (*BFCL, error) {
	answers := map[string]json.RawMessage{}
	answerFile := filepath.Join(dir, bfclAnswers)
	err := readLines(answerFile, func(line []byte) error {
		var row struct {
			ID    string            `json:"id"`
			Truth []json.RawMessage `json:"ground_truth"`
		}
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		if len(row.Truth) != 1 {
			return fmt.Errorf("%s: %d calls in ground_truth; simple_python has one", row.ID, len(row.Truth))
		}
		answers[row.ID] = row.Truth[0]
		return nil
	})
	if err != nil {
		return nil, err
	}
	b := &BFCL{}
	var parts []string
	err = readLines(filepath.Join(dir, bfclQuestions), func(line []byte) error {
		row, err := readBFCL(line, answers)
		if err != nil {
			return err
		}
		parts = append(parts, string(line), string(answers[row.id]))
		if float64(rngOf("bfcl_simple", row.id).IntN(1<<20))/(1<<20) < heldoutShare {
			b.heldout = append(b.heldout, row)
		} else {
			b.train = append(b.train, row)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(b.train) == 0 || len(b.heldout) == 0 {
		return nil, fmt.Errorf("%s: %d training and %d held-out rows; both splits need some", dir, len(b.train), len(b.heldout))
	}
	b.identity = "bfcl_simple:" + digest(append(parts, strconv.FormatFloat(heldoutShare, 'g', -1, 64))...)
	return b, nil
}

func readLines(path string, each func([]byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w; unpack a bfcl-eval wheel and give its bfcl_eval/data", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 4<<20)
	for line := 1; sc.Scan(); line++ {
		if len(strings.TrimSpace(sc.Text())) == 0 {
			continue
		}
		if err := each(append([]byte(nil), sc.Bytes()...)); err != nil {
			return fmt.Errorf("%s:%d: %w", path, line, err)
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func readBFCL(line []byte, answers map[string]json.RawMessage) (bfclRow, error) {
	var raw struct {
		ID       string `json:"id"`
		Question [][]struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"question"`
		Function []struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return bfclRow{}, err
	}
	if len(raw.Question) != 1 || len(raw.Question[0]) != 1 || raw.Question[0][0].Role != "user" || len(raw.Function) != 1 {
		return bfclRow{}, fmt.Errorf("%s: need one user message and one function", raw.ID)
	}
	answer, ok := answers[raw.ID]
	if !ok {
		return bfclRow{}, fmt.Errorf("%s: no answer in %s", raw.ID, bfclAnswers)
	}
	f := raw.Function[0]
	function, err := json.Marshal(f)
	if err != nil {
		return bfclRow{}, err
	}
	ref, err := reward.DecodeASTReference(fmt.Appendf(nil, `{"function":%s,"possible":%s}`, function, answer))
	if err != nil {
		return bfclRow{}, fmt.Errorf("%s: %w", raw.ID, err)
	}
	params, err := jsonSchema(f.Parameters)
	if err != nil {
		return bfclRow{}, fmt.Errorf("%s: parameters: %w", raw.ID, err)
	}
	row := bfclRow{
		id: raw.ID, question: raw.Question[0][0].Content, ref: ref,
		spec: tool.Spec{Name: f.Name, Description: f.Description, Parameters: params},
	}
	call, err := row.rightCall(answer)
	if err != nil {
		return bfclRow{}, fmt.Errorf("%s: %w", raw.ID, err)
	}
	row.demo = []rollout.Turn{{Calls: []tool.Call{call}}}
	return row, nil
}

// schemaTypes turns BFCL's type names into JSON Schema's.
var schemaTypes = map[string]string{
	"dict": "object", "float": "number", "tuple": "array", "any": "string",
	"string": "string", "integer": "integer", "boolean": "boolean", "array": "array", "object": "object", "number": "number",
}

// jsonSchema rewrites the types of a BFCL parameter description, key order
// kept.
func jsonSchema(data json.RawMessage) (json.RawMessage, error) {
	rewrite := func(v json.RawMessage) (json.RawMessage, error) {
		var name string
		if err := json.Unmarshal(v, &name); err != nil {
			return nil, err
		}
		t, ok := schemaTypes[name]
		if !ok {
			return nil, fmt.Errorf("unknown type %q", name)
		}
		return json.Marshal(t)
	}
	return mapObject(data, func(key string, v json.RawMessage) (json.RawMessage, error) {
		switch key {
		case "type":
			return rewrite(v)
		case "items":
			return jsonSchema(v)
		case "properties":
			return mapObject(v, func(_ string, p json.RawMessage) (json.RawMessage, error) { return jsonSchema(p) })
		}
		return v, nil
	})
}

// mapObject rewrites the values of a JSON object in order.
func mapObject(data json.RawMessage, f func(key string, v json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	dec := json.NewDecoder(strings.NewReader(string(data)))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	out := []byte{'{'}
	for dec.More() {
		k, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		if v, err = f(k.(string), v); err != nil {
			return nil, fmt.Errorf("%v: %w", k, err)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		key, _ := json.Marshal(k)
		out = append(append(append(out, key...), ':'), v...)
	}
	return append(out, '}'), nil
}

// rightCall builds a call the checker accepts: of every parameter the first
// accepted value, those left out that may be. It is checked before it is used.
func (r bfclRow) rightCall(answer json.RawMessage) (tool.Call, error) {
	var possible map[string]json.RawMessage
	if err := json.Unmarshal(answer, &possible); err != nil {
		return tool.Call{}, err
	}
	args := map[string]json.RawMessage{}
	for _, params := range possible {
		var accepted map[string][]json.RawMessage
		if err := json.Unmarshal(params, &accepted); err != nil {
			return tool.Call{}, err
		}
		for name, values := range accepted {
			if optional(values) && !slices.Contains(r.ref.Function.Parameters.Required, name) {
				continue
			}
			if v, ok := pick(r.ref.Function.Parameters.Properties[name], values); ok {
				args[name] = v
			}
		}
	}
	data, err := json.Marshal(args)
	if err != nil {
		return tool.Call{}, err
	}
	call := tool.Call{Name: r.ref.Function.Name, Arguments: data}
	if err := r.ref.Match([]tool.Call{call}); err != nil {
		return tool.Call{}, fmt.Errorf("no right call follows from the answer: %w", err)
	}
	return call, nil
}

func optional(values []json.RawMessage) bool {
	for _, v := range values {
		if string(v) == `""` {
			return true
		}
	}
	return false
}

// pick chooses the first value that is not the optional mark; the fields of an
// accepted object are lists of accepted values themselves.
func pick(prop reward.ASTProperty, values []json.RawMessage) (json.RawMessage, bool) {
	for _, v := range values {
		if string(v) == `""` {
			continue
		}
		switch {
		case prop.Type == "dict":
			return pickFields(v)
		case prop.Items != nil && prop.Items.Type == "dict":
			var list []json.RawMessage
			if json.Unmarshal(v, &list) != nil {
				return v, true
			}
			for i := range list {
				if f, ok := pickFields(list[i]); ok {
					list[i] = f
				}
			}
			out, err := json.Marshal(list)
			return out, err == nil
		}
		return v, true
	}
	return nil, false
}

func pickFields(v json.RawMessage) (json.RawMessage, bool) {
	var fields map[string][]json.RawMessage
	if json.Unmarshal(v, &fields) != nil {
		return v, true
	}
	out := map[string]json.RawMessage{}
	for name, values := range fields {
		if optional(values) {
			continue
		}
		if f, ok := pick(reward.ASTProperty{}, values); ok {
			out[name] = f
		}
	}
	data, err := json.Marshal(out)
	return data, err == nil
}

// Name implements rollout.Source.
func (b *BFCL) Name() string { return "bfcl_simple" }

// Identity implements Identified.
func (b *BFCL) Identity() string { return b.identity }

// HeldoutSize implements rollout.Source.
func (b *BFCL) HeldoutSize() int { return len(b.heldout) }

// TrainSize is the number of different training tasks.
func (b *BFCL) TrainSize() int { return len(b.train) }

// Difficulty implements Graded: the parameters of the function to call.
func (b *BFCL) Difficulty(i uint64) (float64, error) {
	return float64(len(b.train[i%uint64(len(b.train))].ref.Function.Parameters.Properties)), nil
}

// Train implements rollout.Source. The stream starts over after the last row.
func (b *BFCL) Train(i uint64) (rollout.Task, error) {
	return b.train[i%uint64(len(b.train))].task(), nil
}

// Heldout implements rollout.Source.
func (b *BFCL) Heldout(i uint64) (rollout.Task, error) {
	if i >= uint64(len(b.heldout)) {
		return rollout.Task{}, fmt.Errorf("task bfcl_simple: held-out index %d; there are %d", i, len(b.heldout))
	}
	return b.heldout[i].task(), nil
}

// recorder accepts every call: the call is what is judged, not its effect.
type recorder struct{}

func (recorder) Call(context.Context, tool.Call) (string, error) { return "ok", nil }

func (r bfclRow) task() rollout.Task {
	return rollout.Task{
		Source: "bfcl_simple", ID: r.id, System: bfclSystem, User: r.question,
		Tools:      []tool.Spec{r.spec},
		NewEnv:     func() tool.Env { return recorder{} },
		Score:      func(ep rollout.Episode) (float64, error) { return r.score(ep), nil },
		SingleTurn: true,
		Demo:       r.demo,
	}
}

// score counts a call that did not parse as a call too many.
func (r bfclRow) score(ep rollout.Episode) float64 {
	if ep.Malformed > 0 {
		return 0
	}
	return r.ref.Score(ep.Calls)
}
