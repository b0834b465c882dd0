package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"time"
)

// Program is a peer's process that is started once and asked between runs of
// ours: it answers each line of JSON with one.
type Program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// programEnd is how long a program may take to end in order.
const programEnd = 20 * time.Second

// StartProgram runs code by a Python interpreter, without a GPU; env is added to
// the environment, and what it says goes to the file log.
func StartProgram(python, code string, args, env []string, log string) (*Program, error) {
	p := &Program{cmd: exec.Command(python, append([]string{"-c", code}, args...)...)}
	p.cmd.Env = append(append(os.Environ(), "CUDA_VISIBLE_DEVICES=", "PYTHONUNBUFFERED=1"), env...)
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p.cmd.Stderr = f
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// Ask sends a question and decodes its answer; an answer with a field error is
// that error. When ctx ends, so does the program.
func (p *Program) Ask(ctx context.Context, question, answer any) error {
	defer context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })()
	line, err := json.Marshal(question)
	if err != nil {
		return err
	}
	if _, err = p.in.Write(append(line, '\n')); err == nil {
		line, err = p.out.ReadBytes('\n')
	}
	var failed struct{ Error string }
	if err == nil {
		err = errors.Join(json.Unmarshal(line, &failed), json.Unmarshal(line, answer))
	}
	if err == nil && failed.Error != "" {
		err = errors.New(failed.Error)
	}
	return err
}

// Close ends the program, by force when it does not do so itself in time. How a
// peer exits says nothing.
func (p *Program) Close() {
	_ = p.in.Close()
	done := make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(programEnd):
		_ = p.cmd.Process.Kill()
		<-done
	}
}
