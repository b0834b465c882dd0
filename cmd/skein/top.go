package main

import (
	"context"
	"fmt"
	"os"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/project"
)

func newTop(g *globals) *cobra.Command {
	var t target
	var every time.Duration
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch runs and nodes in the terminal",
		Long: `top shows every run of a store (step, reward, groups by state, staleness of what
was trained, tables), every process (policy version in use, tokens per second,
last error) and the tools that take longest, and keeps it fresh. Keys: q quits,
p pauses. What it reads, skein status --json prints for scripts.`,
		Example: `  skein top --dir runs/demo
  skein top --join 10.0.0.1:7400 --token-file token --every 5s
  skein top --dir runs/demo --once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return fmt.Errorf("--every %s: use at least 100ms", every)
			}
			st, err := t.connect(cmd.Context(), g)
			if err != nil {
				return err
			}
			defer st.Close()
			look := func() topLook {
				ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
				defer cancel()
				o, err := project.Look(ctx, st)
				return topLook{o, err}
			}
			if once {
				l := look()
				fmt.Print(renderTop(topFrame{now: l.o, width: 120}))
				return l.err
			}
			m := &topModel{look: look, every: every}
			_, err = tea.NewProgram(m, tea.WithContext(cmd.Context()), tea.WithAltScreen(), tea.WithOutput(os.Stderr)).Run()
			return err
		},
	}
	t.flags(cmd)
	cmd.Flags().DurationVar(&every, "every", time.Second, "how often to look")
	cmd.Flags().BoolVar(&once, "once", false, "print one look and end")
	return cmd
}

// topLook is one look at the store.
type topLook struct {
	o   project.Overview
	err error
}

// topModel is the terminal program: looks come in, frames go out.
type topModel struct {
	look   func() topLook
	every  time.Duration
	frame  topFrame
	paused bool
}

type topTick struct{}

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return m.fetch }

func (m *topModel) fetch() tea.Msg { return m.look() }

func (m *topModel) wait() tea.Cmd {
	return tea.Tick(m.every, func(time.Time) tea.Msg { return topTick{} })
}

// Update implements tea.Model.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.frame.width, m.frame.height = msg.Width, msg.Height
	case tea.KeyMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		case "p", " ":
			m.paused = !m.paused
			m.frame.paused = m.paused
		}
	case topTick:
		if m.paused {
			return m, m.wait()
		}
		return m, m.fetch
	case topLook:
		m.frame.err = msg.err
		if len(msg.o.Runs) > 0 || msg.o.Cluster != nil || msg.err == nil {
			m.frame.before, m.frame.now = m.frame.now, msg.o
		}
		return m, m.wait()
	}
	return m, nil
}

// View implements tea.Model.
func (m *topModel) View() string { return renderTop(m.frame) }
