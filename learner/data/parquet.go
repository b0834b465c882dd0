package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
)

// readParquet yields the rows of a Parquet file, numbered from 1. Lists and
// structs become JSON lists and objects; a struct's null fields are absent,
// since Parquet has no other way to leave one out.
func readParquet(path string) iter.Seq2[raw, error] {
	return func(yield func(raw, error) bool) {
		if err := parquetRows(path, yield); err != nil {
			yield(raw{}, fmt.Errorf("%s: %w", path, err))
		}
	}
}

// parquetRows also turns the library's panics over damaged files into errors.
func parquetRows(path string, yield func(raw, error) bool) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	yielding := false
	defer func() {
		if r := recover(); r != nil {
			if yielding {
				panic(r) // not the file's fault
			}
			err = fmt.Errorf("damaged Parquet file: %v", r)
		}
	}()
	file, err := parquet.OpenFile(f, st.Size())
	if err != nil {
		return err
	}
	root := file.Schema()
	r := parquet.NewReader(file)
	defer r.Close()
	for n := int64(1); ; n++ {
		row := map[string]any{}
		if err := r.Read(&row); errors.Is(err, io.EOF) {
			if n-1 != file.NumRows() {
				return fmt.Errorf("it ends after row %d of %d", n-1, file.NumRows())
			}
			return nil
		} else if err != nil {
			return fmt.Errorf("row %d: %w", n, err)
		}
		out := raw{where: fmt.Sprintf("%s:%d", path, n), columns: map[string]json.RawMessage{}}
		var bad error
		for _, field := range root.Fields() {
			js, err := json.Marshal(plain(field, row[field.Name()]))
			if err != nil {
				bad = errors.Join(bad, fmt.Errorf("column %q: %w", field.Name(), err))
				continue
			}
			out.columns[field.Name()] = js
		}
		yielding = true
		if !yield(out, bad) {
			return nil
		}
		yielding = false
	}
}

// plain turns a value of a node into what JSON has.
func plain(n parquet.Node, v any) any {
	switch x := v.(type) {
	case nil:
		return nil
	case []byte:
		if utf8.Valid(x) {
			return string(x)
		}
		return x
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = plain(element(n), e)
		}
		return out
	case map[string]any:
		if isList(n) {
			return listOf(n, x)
		}
		out := make(map[string]any, len(x))
		for k, e := range x {
			if p := plain(child(n, k), e); p != nil {
				out[k] = p
			}
		}
		return out
	}
	return v
}

// isList recognises the three-level form of a list: a group whose only child is
// a repeated group of one child.
func isList(n parquet.Node) bool {
	if n == nil || n.Leaf() || len(n.Fields()) != 1 {
		return false
	}
	f := n.Fields()[0]
	return f.Repeated() && !f.Leaf() && len(f.Fields()) == 1 && (f.Name() == "list" || f.Name() == "bag" || f.Name() == "array")
}

// listOf unwraps {"list": [{"element": x}, ...]}.
func listOf(n parquet.Node, m map[string]any) any {
	var mid parquet.Node
	if n != nil && len(n.Fields()) == 1 {
		mid = n.Fields()[0]
	}
	out := []any{}
	for _, v := range m { // one key
		items, _ := v.([]any)
		for _, it := range items {
			if group, ok := it.(map[string]any); ok && mid != nil && !mid.Leaf() && len(mid.Fields()) == 1 {
				out = append(out, plain(mid.Fields()[0], group[mid.Fields()[0].Name()]))
				continue
			}
			out = append(out, plain(mid, it))
		}
	}
	return out
}

func child(n parquet.Node, name string) parquet.Node {
	if n == nil || n.Leaf() {
		return nil
	}
	for _, f := range n.Fields() {
		if f.Name() == name {
			return f
		}
	}
	return nil
}

// element is the node of a list's elements.
func element(n parquet.Node) parquet.Node {
	if isList(n) {
		return n.Fields()[0].Fields()[0]
	}
	return n
}
