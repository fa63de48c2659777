/** Every value of the chart, changed once: found in the values' schema, so that none is forgotten. */

interface Schema {
  type?: string;
  properties?: Record<string, Schema>;
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  oneOf?: Schema[];
  examples?: unknown[];
  minimum?: number;
  maximum?: number;
  pattern?: string;
}

export interface Change {
  path: readonly string[];
  value: unknown;
  /** Of the value as the schema has it. */
  type: string;
}

/** Values of the operator's and the agent's own files that are not made from their type. */
const EXAMPLES: Readonly<Record<string, unknown>> = {
  'config.defaults.memory': '2Gi',
  'config.defaults.diskSize': '20Gi',
  'config.defaults.diskRequest': '20Gi',
  'config.diskRequestRatio': 0.5,
  'config.imageStorage.registry.prefix': 'registry.example/berth',
  'config.hosts.addressCIDRs': ['10.1.0.0/16', 'fd00:1::/64'],
  'config.hosts.nodeNameSuffix': '-vms',
  'config.priorityClassName': 'berth-machines',
  'config.leaderElection.leaseDurationSeconds': 12,
  'config.leaderElection.renewDeadlineSeconds': 7,
  'config.leaderElection.retryPeriodSeconds': 2,
  'agent.config.kubelet.clientCAFile': '/etc/berth/authority.crt',
  'agent.config.network': { driver: 'user' },
  'agent.config.images.registries': [{ host: 'registry.example:5000' }],
  'agent.config.images.budget': '100Gi',
  'agent.config.images.minimumFree': '10Gi',
  'agent.config.images.sharedRoots': ['/srv/images'],
  'agent.config.reserved.memory': '2Gi',
  'agent.config.tags': ['fast'],
  'certificate.secretName': 'metrics-certificate',
};

export function changes(schema: object, values: unknown): Change[] {
  return [...leaves(schema, [], values)];
}

function* leaves(schema: Schema, path: readonly string[], current: unknown): Generator<Change> {
  const known = EXAMPLES[path.join('.')];
  if (schema.properties !== undefined && schema.examples === undefined && known === undefined) {
    for (const [key, child] of Object.entries(schema.properties)) {
      if (path.length > 0 || key !== 'global') {
        yield* leaves(child, [...path, key], at(current, key));
      }
    }
    return;
  }
  yield { path, value: known ?? changed(schema, current), type: schema.type ?? 'union' };
}

function at(values: unknown, key: string): unknown {
  return typeof values === 'object' && values !== null ? (values as Record<string, unknown>)[key] : undefined;
}

function changed(schema: Schema, current: unknown): unknown {
  const example = schema.examples?.find((one) => JSON.stringify(one) !== JSON.stringify(current));
  if (example !== undefined) {
    return example;
  }
  const choices = schema.enum ?? (schema.anyOf ?? schema.oneOf ?? []).map((one) => one.const);
  const other = choices.find((one) => one !== current && one !== undefined);
  if (other !== undefined) {
    return other;
  }
  if (schema.const !== undefined) {
    return schema.const;
  }
  switch (schema.type) {
    case 'boolean':
      return current !== true;
    case 'integer':
    case 'number':
      return differentNumber(schema, typeof current === 'number' ? current : undefined);
    case 'string':
      return current === 'changed' ? 'changed-again' : 'changed';
    default:
      throw new Error(`no example for ${JSON.stringify(schema)}: give it one`);
  }
}

/** A prime where it fits, so that it is found in the output and not by chance. */
function differentNumber({ minimum = 0, maximum = Infinity }: Schema, current: number | undefined): number {
  const found = [3, 7, 61, 709, 3671].find((one) => one !== current && one >= minimum && one <= maximum);
  return found ?? (current === minimum ? minimum + 1 : minimum);
}

/** `{a: {b: value}}` for the path a.b. */
export function nested(path: readonly string[], value: unknown): object {
  return path.reduceRight<unknown>((inner, key) => ({ [key]: inner }), value) as object;
}

/** Both, the second winning; lists are replaced whole, as Helm does it. */
export function merged(first: unknown, second: unknown): unknown {
  if (!isObject(first) || !isObject(second)) {
    return second;
  }
  const result: Record<string, unknown> = { ...first };
  for (const [key, value] of Object.entries(second)) {
    result[key] = key in result ? merged(result[key], value) : value;
  }
  return result;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
