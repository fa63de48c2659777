/** Reads the command line of the agent: without a command it runs, and with `doctor` it checks the host. */
import { parseArgs } from 'node:util';
import { ConfigError } from '../base/config.ts';
import { codeOf, messageOf } from '../base/errors.ts';

/** Forms in which the findings of a check are printed. */
const OUTPUTS = ['text', 'json'] as const;
export type DoctorOutput = (typeof OUTPUTS)[number];

/** Command that checks the host. */
const DOCTOR = 'doctor';

export type AgentCommand =
  | {
      readonly name: 'run';
      readonly config: string;
      /** File of the standard output, which the agent keeps small. Undefined if another program does that. */
      readonly logFile: string | undefined;
    }
  | { readonly name: typeof DOCTOR; readonly config: string | undefined; readonly output: DoctorOutput };

/** Returns the command of a command line. @throws ConfigError when the command line is wrong. */
export function parseCommandLine(args: readonly string[]): AgentCommand {
  const { positionals, values } = parse(args);
  const [command, ...rest] = positionals;
  const surplus = command === undefined || command === DOCTOR ? rest : positionals;
  if (surplus.length > 0) {
    throw misuse(`"${surplus.join(' ')}" is not allowed. The only command is ${DOCTOR}`);
  }
  const logFile = values['log-file'];
  if (command === DOCTOR) {
    if (logFile !== undefined) {
      throw misuse(`--log-file is not for the command ${DOCTOR}`);
    }
    const output = OUTPUTS.find((one) => one === (values.output ?? 'text'));
    if (output === undefined) {
      throw misuse(`--output: "${values.output}" is not allowed, but ${OUTPUTS.join(' and ')}`);
    }
    return { name: DOCTOR, config: values.config, output };
  }
  if (values.output !== undefined) {
    throw misuse(`--output is for the command ${DOCTOR} only`);
  }
  if (values.config === undefined) {
    throw misuse('--config FILE is missing');
  }
  return { name: 'run', config: values.config, logFile };
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: { config: { type: 'string' }, output: { type: 'string' }, 'log-file': { type: 'string' } },
    });
  } catch (error) {
    throw (codeOf(error) ?? '').startsWith('ERR_PARSE_ARGS') ? misuse(messageOf(error)) : error;
  }
}

function misuse(mistake: string): ConfigError {
  return new ConfigError('The command line', [mistake]);
}
