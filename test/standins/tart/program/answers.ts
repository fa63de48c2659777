/** What the stand-in for `tart` prints when it ends, and its exit codes. */
import { CODES } from './arguments.ts';

/** What a call prints, and its exit code. */
export interface Answer {
  code: number;
  stdout: string;
  stderr: string;
}

const done = (stdout: string): Answer => ({ code: CODES.done, stdout, stderr: '' });
/**
 * How the process of a machine ends: without power, after the guest has shut down, after the hypervisor has failed, and after the memory was
 * written or could not be written.
 */
export const STOPPED = done('stopping VM...\n');
export const SHUT_DOWN = done('guest has stopped the virtual machine\n');
export const FAILED = done('guest has stopped the virtual machine due to error: stand-in\n');
export const SUSPENDED = done('pausing VM to take a snapshot...\n');
export const NOT_SUSPENDED: Answer = {
  code: CODES.other,
  stdout: '',
  stderr: 'the virtual machine cannot be saved\n',
};
/** How the process of a machine ends when the program that filters its packets has ended. */
export const SOFTNET_ENDED: Answer = {
  code: CODES.other,
  stdout: '',
  stderr: 'RuntimeFailed(why: "Softnet process terminated prematurely")\n',
};
