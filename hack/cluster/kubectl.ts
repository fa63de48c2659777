import { spawn } from 'node:child_process';
import { limitTime } from '../../base/exec.ts';

export interface KubectlOptions {
  input?: string;
  /** True if a failed kubectl should resolve with its exit code in `code`, instead of reject. */
  allowFailure?: boolean;
  timeoutMilliseconds?: number;
}

export interface KubectlResult {
  stdout: string;
  stderr: string;
  code: number;
}

export type Kubectl = (args: readonly string[], options?: KubectlOptions) => Promise<KubectlResult>;

/** Time limit of kubectl. It is longer than any time limit that callers pass to kubectl itself. */
const DEFAULT_TIMEOUT_MILLISECONDS = 120_000;

/**
 * Returns a function that runs kubectl for one cluster, without the caller's own kubeconfig. @throws Error with its stderr when it fails.
 */
export function kubectlFor(file: string, kubeconfig: string): Kubectl {
  return async (args, options = {}) => {
    const result = await run(file, ['--kubeconfig', kubeconfig, ...args], options);
    if (result.code !== 0 && options.allowFailure !== true) {
      throw new Error(`kubectl ${args.join(' ')}: ${result.stderr.trim() || `exit code ${result.code}`}`);
    }
    return result;
  };
}

function run(file: string, args: readonly string[], options: KubectlOptions): Promise<KubectlResult> {
  const child = spawn(file, args, { stdio: 'pipe' });
  limitTime(child, options.timeoutMilliseconds ?? DEFAULT_TIMEOUT_MILLISECONDS);
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].setEncoding('utf8').on('data', (text: string) => {
      output[name] += text;
    });
  }
  // This error needs no message. If kubectl ends before it has read its input, stderr contains the reason.
  child.stdin.on('error', () => undefined);
  child.stdin.end(options.input ?? '');
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => {
      if (signal !== null) {
        output.stderr += `ended by ${signal}, perhaps for taking too long`;
      }
      resolve({ ...output, code: code ?? 1 });
    });
  });
}
