/** State of a machine whose hypervisor runs. */
export interface RunningState {
  kind: 'running';
  pid: number;
  /**
   * Whether the virtual CPUs run, as far as the driver knows. The operating system of the guest has perhaps not booted yet.
   */
  guestStarted: boolean;
  /**
   * Whether the virtual CPUs are stopped until the driver's `unpause`. The cause is a call of `pause`, or a write of the guest that failed
   * because the host's disk is full.
   */
  paused: boolean;
  /** Absent if the VM asks for no display, or if the driver does not know the display's state yet. */
  display?: DisplayState;
  /**
   * Accelerator with which the process was started. It can differ from the present accelerators of the host. Absent if the driver does not
   * know it.
   */
  accelerator?: string;
}

/** Whether the guest has the display that its VM asks for. `message` is a sentence for people. */
export type DisplayState =
  | { ready: true; reason: 'DisplaySet'; message: string }
  | { ready: false; reason: 'NoDPI' | 'ScreenCropped'; message: string };
