import { spawn } from 'node:child_process';

export interface KubectlOptions {
  input?: string;
  /** Resolve also when kubectl fails; `code` tells. */
  allowFailure?: boolean;
  timeoutMilliseconds?: number;
}

export interface KubectlResult {
  stdout: string;
  stderr: string;
  code: number;
}

export type Kubectl = (args: readonly string[], options?: KubectlOptions) => Promise<KubectlResult>;

/** Longer than any wait that a caller gives kubectl itself. */
const DEFAULT_TIMEOUT_MILLISECONDS = 120_000;

/** kubectl for one cluster, untouched by the caller's own kubeconfig. @throws Error with its stderr when it fails. */
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
  const child = spawn(file, args, {
    stdio: 'pipe',
    timeout: options.timeoutMilliseconds ?? DEFAULT_TIMEOUT_MILLISECONDS,
    killSignal: 'SIGKILL',
  });
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].setEncoding('utf8').on('data', (text: string) => {
      output[name] += text;
    });
  }
  // A kubectl that ends before it has read its input says why on stderr.
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
