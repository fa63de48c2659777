/** `agent doctor`: checks this host, and prints for each check what was found and what to do. */
import { type HostCheck, CHECKS, type Finding, type CheckResult } from './checks.ts';
import type { DoctorOutput } from '../commandline.ts';
import { examineHost, type ExaminedHost } from './facts.ts';

/** Exit code if a person has to fix something. */
const EXIT_FIX = 1;

export type NamedFinding = { readonly check: string } & Finding;

/** Checks this host and prints the findings. Returns the exit code: 1 if there is something to fix. */
export async function checkHost(
  file: string | undefined,
  output: DoctorOutput,
  print: (text: string) => Promise<void>,
): Promise<number> {
  const findings = judgeHost(await examineHost(file));
  await print(output === 'json' ? `${JSON.stringify(findings, undefined, 2)}\n` : formatFindings(findings));
  return findings.some(({ result }) => result === 'fix') ? EXIT_FIX : 0;
}

/** Returns the findings of all checks that apply to the host. */
export function judgeHost(host: ExaminedHost, checks: readonly HostCheck[] = CHECKS): NamedFinding[] {
  return checks.flatMap(({ name, judge }) => {
    const finding = judge(host);
    return finding === undefined ? [] : [{ check: name, ...finding }];
  });
}

/** Returns the findings as lines for people. The last line counts them. */
export function formatFindings(findings: readonly NamedFinding[]): string {
  const [first, second] = [
    widthOf(findings.map(({ result }) => result)),
    widthOf(findings.map(({ check }) => check)),
  ];
  const margin = ' '.repeat(first + second);
  const lines = findings.flatMap(({ result, check, finding, advice }) => [
    `${result.padEnd(first)}${check.padEnd(second)}${indent(finding, margin)}`,
    ...(advice === undefined ? [] : [`${margin}${indent(advice, margin)}`]),
  ]);
  const count = (wanted: CheckResult): number => findings.filter(({ result }) => result === wanted).length;
  return `${lines.join('\n')}\n\n${count('ok')} ok, ${count('fix')} to fix, ${count('unknown')} unknown\n`;
}

function widthOf(texts: readonly string[]): number {
  return Math.max(0, ...texts.map(({ length }) => length)) + 2;
}

function indent(text: string, margin: string): string {
  return text.replaceAll('\n', `\n${margin}`);
}
