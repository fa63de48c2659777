/**
 * Stand-in for the Android emulator: its command line. The list has only options that the real program is known to have, so that an
 * argument that the real program refuses ends the stand-in too.
 */

/** Options that are followed by a value. */
const WITH_VALUE = [
  'accel',
  'adb-path',
  'avd',
  'cores',
  'dns-server',
  'feature',
  'gpu',
  'grpc',
  'http-proxy',
  'id',
  'idle-grpc-timeout',
  'logcat',
  'logcat-output',
  'memory',
  'net-tap',
  'port',
  'ports',
  'prop',
  'quit-after-boot',
  'report-console',
  'shell-serial',
  'wifi-tap',
] as const;

const WITHOUT_VALUE = [
  'accel-check',
  'delay-adb',
  'grpc-use-jwt',
  'grpc-use-token',
  'list-avds',
  'no-audio',
  'no-boot-anim',
  'no-direct-adb',
  'no-metrics',
  'no-snapshot',
  'no-snapshot-load',
  'no-snapshot-save',
  'no-window',
  'read-only',
  'restart-when-stalled',
  'show-kernel',
  'skip-adb-auth',
  'verbose',
  'version',
  'wipe-data',
] as const;

type ValueName = (typeof WITH_VALUE)[number];
type FlagName = (typeof WITHOUT_VALUE)[number];

export interface Options {
  values: Partial<Record<ValueName, string>>;
  flags: Set<FlagName>;
  /** Features that are switched off: `-feature -NAME`. */
  withoutFeatures: Set<string>;
}

/** Error that ends the stand-in with code 1 and these words. */
export class Fatal extends Error {
  override readonly name = 'Fatal';
}

/** @throws Fatal for an option that the real program does not have, and for a missing value. */
export function parseArguments(args: readonly string[]): Options {
  const options: Options = { values: {}, flags: new Set(), withoutFeatures: new Set() };
  for (let index = 0; index < args.length; index += 1) {
    const argument = args[index] ?? '';
    const name = argument.slice(1);
    if (argument === '-qemu') {
      break;
    } else if (argument.startsWith('@')) {
      options.values.avd = name;
    } else if (argument.startsWith('-') && isOne(WITHOUT_VALUE, name)) {
      options.flags.add(name);
    } else if (argument.startsWith('-') && isOne(WITH_VALUE, name)) {
      index += 1;
      take(options, name, args[index]);
    } else {
      throw new Fatal(`unknown option: ${argument}\nplease use -help for a list of valid options`);
    }
  }
  return options;
}

function take(options: Options, name: ValueName, value: string | undefined): void {
  if (value === undefined) {
    throw new Fatal(`option -${name} requires a value`);
  }
  if (name === 'feature') {
    if (value.startsWith('-')) {
      options.withoutFeatures.add(value.slice(1));
    }
  } else {
    options.values[name] = value;
  }
}

function isOne<Name extends string>(names: readonly Name[], name: string): name is Name {
  return (names as readonly string[]).includes(name);
}
