/** Makes the tables of the architecture page that show the folders and their layers. */
import { layersOf, ORDER, WINGS } from '../lint/layers.ts';
import { table } from './table.ts';

const code = (name: string): string => `\`${name}\``;

/** Returns the table of the folders at the top, with those that each may import. */
export function foldersTable(): string {
  const rows = Object.entries(WINGS).map(([name, { content, runs, imports }]) => [
    code(`${name}/`),
    content,
    runs,
    imports.map(code).join(', '),
  ]);
  return table(['folder', 'content', 'runs as', 'imports'], rows);
}

/** Returns the table of the order inside folders, from the lowest part. */
export function layersTable(): string {
  const rows = Object.keys(ORDER).map((folder) => [
    code(`${folder}/`),
    layersOf(folder)
      .map((layer) => layer.map(code).join(' '))
      .join(', then '),
  ]);
  return table(['inside', 'order, the lowest part first'], rows);
}
