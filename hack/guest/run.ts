import { run as runProgram } from '../../base/exec.ts';

/** Limit of a program's output. apt and xorriso print much. */
const OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024;

export interface RunOptions {
  /** Variables that are added to the environment of this process. */
  environment?: Record<string, string>;
  cwd?: string;
  timeoutMilliseconds: number;
}

/**
 * Runs a program and resolves with its output when it has ended.
 * @throws ProgramError with the end of the program's messages.
 */
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
