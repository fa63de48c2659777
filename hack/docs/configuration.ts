/**
 * Makes the tables of docs/reference/configuration.md. Keys, types and defaults come from the schemas of the programs. Descriptions that
 * the schemas lack are written in the page and kept.
 */
import * as z from 'zod';
import { configSchema as agentConfig } from '../../agent/config.ts';
import { configSchema as operatorConfig } from '../../operator/config/config.ts';
import { configSchema as serverConfig } from '../../server/config.ts';
import { between, fieldsOf, type JsonSchema, table, typeOf } from './table.ts';

/** Returns the page with current tables. @throws Error naming each key without a description. */
export function configurationPage(current: string): string {
  const withOperator = between(current, 'operator', tableOf(operatorConfig, current, 'operator'));
  const withServer = between(withOperator, 'server', tableOf(serverConfig, current, 'server'));
  return between(withServer, 'agent', tableOf(agentConfig, current, 'agent'));
}

function tableOf(schema: z.ZodType, current: string, name: string): string {
  const known = descriptions(current, name);
  const rows = fieldsOf(z.toJSONSchema(schema, { io: 'input' }) as JsonSchema).map(({ path, schema }) => ({
    path,
    cells: [`\`${path}\``, typeOf(schema), defaultOf(schema), schema.description ?? known.get(path) ?? ''],
  }));
  const missing = rows.filter(({ cells }) => cells.at(-1) === '').map(({ path }) => path);
  if (missing.length > 0) {
    throw new Error(
      `docs/reference/configuration.md: describe these keys of the ${name}: ${missing.join(', ')}`,
    );
  }
  return table(
    ['key', 'type', 'default', 'description'],
    rows.map(({ cells }) => cells),
  );
}

function defaultOf({ default: value }: JsonSchema): string {
  return value === undefined || (Array.isArray(value) && value.length === 0)
    ? 'none'
    : `\`${textOf(value)}\``;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Returns the last cell of each row of a section by its key. */
function descriptions(page: string, name: string): Map<string, string> {
  const section = new RegExp(`<!-- ${name} -->\n([^]*?)<!-- end -->`).exec(page)?.[1] ?? '';
  const rows = section.matchAll(/^\| `([^`]+)` \|.*?(?<!\\)\| ([^|]*(?:\\\|[^|]*)*) \|$/gm);
  return new Map([...rows].map(([, key = '', text = '']) => [key, text.replaceAll('\\|', '|').trim()]));
}
