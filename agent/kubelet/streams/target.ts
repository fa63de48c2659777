/** The interface of a machine to which callers connect streams. */
import type { Duplex } from 'node:stream';
import type { GuestCommand, GuestCommandResult } from '../../drivers/driver.ts';

/** Ways to connect to one running machine. Each function throws StreamRefused when the machine does not allow the connection. */
export interface StreamTarget {
  /** Connects to the serial console. Several connections can read the console of a machine, but only one can send input. */
  console(input: boolean): Promise<Duplex>;
  /** Connects to a TCP port of the guest. The port `SCREEN_PORT` stands for the screen of the machine. */
  port(port: number): Promise<Duplex>;
  execute(command: GuestCommand): Promise<GuestCommandResult>;
}
