/** Checks whether the file server of a folder answers. */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { ProgramError, run } from '../../../base/exec.ts';

/**
 * Time limit in milliseconds for the answer. The limit is long, because a file server that moves to another machine needs more than a minute.
 */
const ANSWER_MILLISECONDS = 120_000;

/**
 * Checks that the file server of a folder answers. Call this function before work with files in a shared folder. While the server is down, a
 * call of Node.js for such a file never returns. A few of these calls would block all work of the agent with files. The agent can end a
 * program instead, so a program asks the server.
 *
 * @throws ReasonedError `ImageFetchFailed` when the server does not answer in time; the signal's reason when the signal aborts.
 */
export async function requireAnswer(folder: string, signal: AbortSignal): Promise<void> {
  const limits = { timeoutMilliseconds: ANSWER_MILLISECONDS, signal };
  try {
    // With `--file-system`, the kernel asks the server, and does not answer from its cache.
    await run('stat', ['--file-system', '--', folder], limits);
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof ProgramError && error.exceeded === 'time') {
      throw new ReasonedError(
        'ImageFetchFailed',
        `The folder ${folder} does not answer: check its file server`,
      );
    }
    // The caller's own work shows all other faults, for example a missing folder.
  }
}
