/** Lint rules of this project: what the linter's own rules cannot say. See `.oxlintrc.json`. */
import { relative, resolve } from 'node:path';

const ROOT = resolve(import.meta.dirname, '..', '..');

/** What the programs are made of; all but their tests is shipped. */
const PRODUCT = /^(?:base|api|kube|operator|agent)\/(?!.*\.test\.ts$)/;
/** What people and tests run. */
const TOOLS = /^(?:hack|test)\//;
const LEVELS = new Set(['trace', 'debug', 'info', 'warn', 'error', 'fatal']);

/** As much of a syntax tree as is looked at here. */
interface Node {
  type: string;
  name?: string;
  value?: unknown;
  source?: Node | null;
  callee?: Node;
  property?: Node;
  properties?: Node[];
  key?: Node;
  arguments?: Node[];
}

interface Context {
  filename: string;
  report(problem: { node: Node; message: string }): void;
}

interface Rule {
  create(context: Context): Record<string, (node: Node) => void>;
}

/** Types too: who needs one of a tool's types needs the tool. */
const productImports: Rule = {
  create(context) {
    if (!PRODUCT.test(relative(ROOT, context.filename))) {
      return {};
    }
    const look = (node: Node): void => {
      const { value } = node.source ?? {};
      if (typeof value === 'string' && TOOLS.test(relative(ROOT, resolve(context.filename, '..', value)))) {
        context.report({ node, message: 'Only tests may import from hack/ and test/.' });
      }
    };
    return { ImportDeclaration: look, ImportExpression: look, ExportNamedDeclaration: look };
  },
};

/** The logger writes an error's stack under this key only. */
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

export default {
  meta: { name: 'berth' },
  rules: { 'product-imports': productImports, 'logged-errors': loggedErrors },
};
