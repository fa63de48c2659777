import { run as runProgram } from '../../base/exec.ts';

/** apt and xorriso are talkative. */
const OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024;

export interface RunOptions {
  /** Added to this process's own. */
  environment?: Record<string, string>;
  cwd?: string;
  timeoutMilliseconds: number;
}

/** Runs a program to its end. @throws ProgramError with the end of what it complained about. */
export async function run(
  program: string,
  parameters: string[],
  { environment, cwd, timeoutMilliseconds }: RunOptions,
): Promise<{ stdout: string }> {
  const stdout = await runProgram(program, parameters, {
    name: [program, ...parameters].join(' '),
    environment: { ...process.env, ...environment },
    folder: cwd,
    timeoutMilliseconds,
    outputLimitBytes: OUTPUT_LIMIT_BYTES,
  });
  return { stdout };
}
