/** What the stub of GitHub keeps. */
export interface SeenRequest {
  readonly method: string;
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
  readonly headers: Readonly<Record<string, string | undefined>>;
  readonly body: unknown;
}

export interface Job {
  readonly id: string;
  state: 'queued' | 'assigned' | 'running' | 'done';
  runner: string | undefined;
}

export interface StubRunner {
  readonly id: number;
  readonly name: string;
  /** Token in the JIT configuration of the runner. */
  readonly token: string;
  status: 'offline' | 'online';
  job: Job | undefined;
}

export interface Message {
  readonly id: number;
  readonly items: readonly object[];
}

export interface StubSet {
  readonly id: number;
  readonly org: string;
  readonly name: string;
  readonly labels: readonly object[];
  readonly jobs: Job[];
  readonly messages: Message[];
  session: { id: string; owner: string; token: string } | undefined;
  /** Value of the last header X-ScaleSetMaxCapacity. */
  capacity: number;
  /** Largest number of long polls of this set at the same time. */
  polls: number;
}

export interface Fault {
  /** Status of all answers. Without it, no answer comes. */
  readonly status: number | undefined;
  readonly headers?: Record<string, string>;
  /** Whether the answers show the credentials of their requests wherever they can. */
  readonly reflects?: boolean;
}
