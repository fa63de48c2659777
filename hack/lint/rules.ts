/** Lint rules of this project that the linter's own rules cannot express. See `.oxlintrc.json`. */
import { relative, resolve } from 'node:path';
import { findArrowUp } from './layers.ts';

const ROOT = resolve(import.meta.dirname, '..', '..');

const LEVELS = new Set(['trace', 'debug', 'info', 'warn', 'error', 'fatal']);

/** Part of a syntax tree that these rules read. */
interface Node {
  type: string;
  name?: string;
  object?: Node;
  value?: unknown;
  source?: Node | null;
  callee?: Node;
  property?: Node;
  properties?: Node[];
  key?: Node;
  arguments?: Node[];
  init?: Node | null;
  id?: Node;
  declarations?: Node[];
  body?: unknown;
}

interface Context {
  filename: string;
  report(problem: { node: Node; message: string }): void;
}

interface Rule {
  create(context: Context): Record<string, (node: Node) => void>;
}

/** Forbids imports that go up. This includes types, because code that needs a type of a part needs the part. */
const layers: Rule = {
  create(context) {
    const file = relative(ROOT, context.filename);
    const look = (node: Node): void => {
      const { value } = node.source ?? {};
      if (typeof value === 'string' && value.startsWith('.')) {
        const message = findArrowUp(file, relative(ROOT, resolve(context.filename, '..', value)));
        if (message !== undefined) {
          context.report({ node, message });
        }
      }
    };
    return {
      ImportDeclaration: look,
      ImportExpression: look,
      ExportNamedDeclaration: look,
      ExportAllDeclaration: look,
    };
  },
};

/** Requires the key `err` for errors, because the logger writes an error's stack only under this key. */
const loggedErrors: Rule = {
  create(context) {
    const isLog = (callee: Node | undefined): boolean =>
      callee?.type === 'MemberExpression' && LEVELS.has(callee.property?.name ?? '');
    const isError = ({ type, value }: Node): boolean =>
      type === 'Property' && (value as Node).name === 'error';
    return {
      CallExpression({ callee, arguments: given = [] }) {
        const fields = isLog(callee) ? (given[0]?.properties ?? []) : [];
        for (const { key } of fields.filter(isError)) {
          if (key !== undefined && key.name !== 'err') {
            context.report({ node: key, message: 'An error is logged under the key `err`.' });
          }
        }
      },
    };
  },
};

/** Folders of the programs and of the command. */
const READERS = /^(?:base|api|kube|actions|operator|agent|runners|server|cli)\/(?!.*\.test\.ts$)/;
/** Files that may call JSON.parse, each with the sender of its JSON. */
const TRUSTED_JSON = new Map([
  ['base/json.ts', 'anybody, after the text was counted'],
  ['kube/json.ts', 'the API server'],
  ['kube/liststream.ts', 'the API server'],
  ['agent/images/local/layout.ts', 'this agent, in its own folder'],
  ['agent/drivers/statefile.ts', 'this agent, in its own folder'],
  ['agent/drivers/qemu/platform.ts', 'this agent, in its own folder'],
  ['agent/network/nat/attachments.ts', 'this agent, in its own folder'],
  ['agent/pods/records.ts', 'this agent, in its own folder'],
  ['agent/processes/lock.ts', 'an agent of this host'],
  ['agent/network/nat/devices.ts', 'the program ip'],
  ['agent/network/nftables.ts', 'the program nft'],
  ['server/http/openapi.ts', 'this server'],
  ['cli/login/session.ts', 'this command, in the folder of its user'],
  ['cli/login/commands.ts', 'the program that started this command'],
]);

/** Forbids to parse JSON without limits. JSON.parse of one hostile megabyte blocks a program for a tenth of a second. */
const boundedJson: Rule = {
  create(context) {
    const file = relative(ROOT, context.filename);
    if (!READERS.test(file) || TRUSTED_JSON.has(file)) {
      return {};
    }
    const isParse = ({ object, property }: Node): boolean =>
      (object?.name === 'JSON' && property?.name === 'parse') || property?.name === 'json';
    return {
      CallExpression({ callee, arguments: given = [] }) {
        const isCall = callee?.type === 'MemberExpression' && isParse(callee);
        // A call of `json` with arguments writes JSON.
        if (isCall && (callee.property?.name === 'parse' || given.length === 0)) {
          context.report({
            node: callee,
            message: 'JSON of others is parsed with base/json.ts, which limits its size and structure.',
          });
        }
      },
    };
  },
};

/** Forbids the option `timeout` of spawn. If the program is missing, its timer stays, and the caller seems to hang. */
const spawnTimeout: Rule = {
  create(context) {
    return {
      CallExpression({ callee, arguments: given = [] }) {
        const name = callee?.name ?? callee?.property?.name;
        const properties = given.flatMap((argument) => argument.properties ?? []);
        for (const { key } of name === 'spawn' ? properties : []) {
          if (key?.name === 'timeout') {
            const message = 'Limit the time with limitTime, run or start of base/exec.ts.';
            context.report({ node: key, message });
          }
        }
      },
    };
  },
};

/** Wings whose attempts are requests to servers. Attempts of the agent are also local, and many need no wait. */
const CLIENTS = /^(?:kube|actions|operator|server|cli)\//;
/** The transport repeats requests after the waits that the API server asks for. */
const TRANSPORT = 'kube/transport.ts';
/** Functions that recognize the refusal of a stale change. A loop that uses them repeats the change. */
const STALE = new Set(['isConflict', 'isAlreadyExists']);
const ATTEMPT = /^(?:attempt|try|retry)$/;

/** Returns whether a part of a syntax tree names one of the functions in {@link STALE}. */
function namesStale(part: unknown): boolean {
  if (Array.isArray(part)) {
    return part.some(namesStale);
  }
  if (typeof part !== 'object' || part === null) {
    return false;
  }
  const { name } = part as Partial<Node>;
  // `parent` leads up again.
  const below = Object.entries(part).filter(([key]) => key !== 'parent');
  return (name !== undefined && STALE.has(name)) || below.some(([, value]) => namesStale(value));
}

/** Forbids loops that repeat an attempt by themselves. Such loops were written without a wait, without a bound, or without jitter. */
const boundedRetries: Rule = {
  create(context) {
    const file = relative(ROOT, context.filename);
    if (!READERS.test(file) || file === TRANSPORT) {
      return {};
    }
    const countsAttempts = ({ init }: Node): boolean =>
      CLIENTS.test(file) && (init?.declarations ?? []).some(({ id }) => ATTEMPT.test(id?.name ?? ''));
    const look = (node: Node): void => {
      if (countsAttempts(node) || namesStale(node.body)) {
        const message =
          'Repeat an attempt with retry of base/retry.ts, and a change of an object with retryChange of kube/conflicts.ts.';
        context.report({ node, message });
      }
    };
    return { ForStatement: look, WhileStatement: look, DoWhileStatement: look };
  },
};

/** Parts of names that are no terms of the field: each was used for several things that have a standard term. */
const VAGUE = new Set(['lastwords', 'words', 'turn', 'turns', 'settle', 'told', 'stood']);
/** Places between the parts of a name: before a capital letter that begins a part, and at underscores. */
const BETWEEN_PARTS = /(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_/;

/** Forbids names with a vague part, in code and in tests. */
const standardTerms: Rule = {
  create(context) {
    const look = (node: Node): void => {
      const vague = node.name?.split(BETWEEN_PARTS).find((part) => VAGUE.has(part.toLowerCase()));
      if (vague !== undefined) {
        const message = `The name ${node.name} has the vague part "${vague}". Use the standard term of the field`;
        context.report({ node, message });
      }
    };
    return { Identifier: look, PrivateIdentifier: look };
  },
};

export default {
  meta: { name: 'berth' },
  rules: {
    layers,
    'logged-errors': loggedErrors,
    'bounded-json': boundedJson,
    'spawn-timeout': spawnTimeout,
    'bounded-retries': boundedRetries,
    'standard-terms': standardTerms,
  },
};
