// What this reader has done in the tour: in this browser only, under one name of its storage. Where there is no storage it is
// kept until the page is left, and the end page says so.

/** Of a lesson: its scene to the end, something tried, each question answered right. */
export interface Done {
  seen: boolean;
  tried: boolean;
  right: Record<string, boolean>;
}

/** Of the exam: for each question whether its answer was right. */
export type Exam = Record<string, boolean>;

const NAME = "twostroke-tour";

export class Score {
  private lessons = new Map<number, Done>();
  exam: Exam | null = null;
  /** Whether the browser keeps it. */
  isKept = true;
  private listeners = new Set<() => void>();

  constructor(private lessonsOf: number) {
    this.read();
  }

  of(lesson: number): Done {
    let done = this.lessons.get(lesson);
    if (!done) this.lessons.set(lesson, (done = { seen: false, tried: false, right: {} }));
    return done;
  }

  /** Something was done: it is kept, and who listens is told. */
  note(change: () => void): void {
    change();
    try {
      localStorage.setItem(NAME, JSON.stringify({ lessons: [...this.lessons], exam: this.exam }));
    } catch {
      this.isKept = false;
    }
    for (const listener of this.listeners) listener();
  }

  forget(): void {
    this.lessons.clear();
    this.note(() => (this.exam = null));
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** What is kept may be of another version, or not this page's: only what has the right form is taken. */
  private read(): void {
    let kept: unknown = null;
    try {
      kept = JSON.parse(localStorage.getItem(NAME) ?? "null");
    } catch {
      this.isKept = this.hasStorage();
    }
    const { lessons, exam } = (kept ?? {}) as { lessons?: unknown; exam?: unknown };
    for (const entry of Array.isArray(lessons) ? lessons : []) {
      const [number, done] = Array.isArray(entry) ? entry : [];
      if (!Number.isInteger(number) || number < 1 || number > this.lessonsOf || typeof done !== "object" || done === null) continue;
      this.lessons.set(number, { seen: done.seen === true, tried: done.tried === true, right: flags(done.right) });
    }
    if (typeof exam === "object" && exam !== null) this.exam = flags(exam);
  }

  private hasStorage(): boolean {
    try {
      return localStorage !== null;
    } catch {
      return false;
    }
  }
}

function flags(value: unknown): Record<string, boolean> {
  const entries = typeof value === "object" && value !== null ? Object.entries(value) : [];
  return Object.fromEntries(entries.filter(([, flag]) => typeof flag === "boolean").slice(0, 64)) as Record<string, boolean>;
}

/** Of a lesson's things to do, how many are done: scene, trial and each question. */
export function share(done: Done, questions: string[]): [number, number] {
  const things = [done.seen, done.tried, ...questions.map((id) => done.right[id] === true)];
  return [things.filter(Boolean).length, things.length];
}
