/** Reads the parts of a Markdown page that the prose linter checks: sentences for people, headings and links. */
import type { Nodes } from 'mdast';
import { fromMarkdown } from 'mdast-util-from-markdown';
import { gfmTableFromMarkdown } from 'mdast-util-gfm-table';
import { gfmTable } from 'micromark-extension-gfm-table';

/** Heading, paragraph or table cell, as plain text. `line` counts from 1. */
export interface Passage {
  readonly isHeading: boolean;
  readonly text: string;
  readonly line: number;
}

/** Link of a page. `target` is its text, for example `../operate/hosts.md#what-makes-a-node-a-host`. */
export interface Link {
  readonly target: string;
  readonly line: number;
}

export interface Page {
  readonly passages: readonly Passage[];
  readonly links: readonly Link[];
}

/** Replacement for inline code: it is one word of its sentence, and no rule of language applies to it. */
const CODE = 'CODE';
const PASSAGES: ReadonlySet<string> = new Set(['paragraph', 'heading', 'tableCell']);

export function readPage(markdown: string): Page {
  const tree = fromMarkdown(markdown, {
    extensions: [gfmTable()],
    mdastExtensions: [gfmTableFromMarkdown()],
  });
  const passages: Passage[] = [];
  const links: Link[] = [];
  visit(tree, (node) => {
    const line = node.position?.start.line ?? 0;
    if (PASSAGES.has(node.type)) {
      passages.push({ isHeading: node.type === 'heading', text: plainText(node), line });
    }
    if (node.type === 'link' || node.type === 'image') {
      links.push({ target: node.url, line });
    }
  });
  return { passages, links };
}

function visit(node: Nodes, see: (node: Nodes) => void): void {
  see(node);
  for (const child of 'children' in node ? node.children : []) {
    visit(child, see);
  }
}

function plainText(node: Nodes): string {
  if (node.type === 'inlineCode') {
    return CODE;
  }
  if (node.type === 'text') {
    return node.value.replaceAll('\n', ' ');
  }
  return 'children' in node ? node.children.map(plainText).join('') : '';
}

/** Returns the anchor that GitHub gives a heading, from the heading's source text. */
export function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replaceAll(/\s/g, '-');
}
