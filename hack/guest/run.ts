import { execFile } from 'node:child_process';

/** apt and xorriso are talkative. */
const OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024;
const ERROR_TAIL_CHARACTERS = 2000;

export interface RunOptions {
  environment?: Record<string, string>;
  cwd?: string;
  timeoutMilliseconds: number;
}

/** Runs a program to its end; a failure's message carries the end of what it wrote. */
export async function run(
  program: string,
  parameters: string[],
  options: RunOptions,
): Promise<{ stdout: string }> {
  return await new Promise((resolve, reject) => {
    execFile(
      program,
      parameters,
      {
        env: { ...process.env, ...options.environment },
        cwd: options.cwd,
        timeout: options.timeoutMilliseconds,
        maxBuffer: OUTPUT_LIMIT_BYTES,
      },
      (error, stdout, stderr) => {
        if (error === null) {
          resolve({ stdout });
        } else {
          const tail = `${stdout}${stderr}`.slice(-ERROR_TAIL_CHARACTERS);
          reject(new Error(`${program} ${parameters.join(' ')} failed: ${tail || error.message}`));
        }
      },
    );
  });
}
