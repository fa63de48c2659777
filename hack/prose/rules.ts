/** Checks the rules of docs/develop/style.md that a program can check: in sentences for people, headings and links of Markdown pages. */
import type { Nodes } from 'mdast';
import { fromMarkdown } from 'mdast-util-from-markdown';
import { gfmTableFromMarkdown } from 'mdast-util-gfm-table';
import { gfmTable } from 'micromark-extension-gfm-table';

/** Heading, paragraph or table cell, as plain text. `line` counts from 1. */
interface Passage {
  readonly isHeading: boolean;
  readonly text: string;
  readonly line: number;
}

/** Link of a page. `target` is its text, for example `../operate/hosts.md#what-makes-a-node-a-host`. */
interface Link {
  readonly target: string;
  readonly line: number;
}

interface Page {
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

const SENTENCE_LENGTH = 25;
const HEADING_LENGTH = 8;

interface Rule {
  readonly pattern: RegExp;
  readonly advice: string;
  /** Pattern of sentences that the rule ignores. */
  readonly except?: RegExp;
}

const QUESTION = /\?$/;

/** Rules with patterns for one sentence. The sentence does not contain inline code. */
const SENTENCE_RULES: readonly Rule[] = [
  {
    pattern: /^(Is|Are|Was|Were|Has|Had|Does|Did|Should)\b.*,/,
    advice: 'begins a condition with a verb: begin with "If" or "When"',
    except: QUESTION,
  },
  {
    pattern: /[,:;] (is|are|were|has|had|does) (there|it|they|he|she)\b/i,
    advice: 'has an inverted condition: use "if" or "when"',
    except: QUESTION,
  },
  {
    pattern: /\bwhat\b(?! to\b)/i,
    advice: 'uses "what" as a noun: name the thing',
    except: QUESTION,
  },
  {
    pattern: /\bsuch (are|is|one|ones|a one)\b|\ball such\b/i,
    advice: 'uses "such" as a noun: name the thing',
  },
  { pattern: /^(Of|Not of|Nor)\b/, advice: 'has an elliptic beginning: begin with the subject' },
  {
    pattern: /^(Who|Whoever)\b|\bwhoever\b/i,
    advice: 'names nobody: write "users who", "anyone who"',
    except: QUESTION,
  },
  { pattern: /\b(mend|mends|mended)\b/i, advice: 'write "fix"' },
  { pattern: /\banew\b/i, advice: 'write "again" or "new"' },
  { pattern: /\bfor ever\b/i, advice: 'write "forever" or give the time' },
  { pattern: /\bper cent\b/i, advice: 'write "percent"' },
  { pattern: /, say\b/, advice: 'write "for example"' },
  { pattern: /^So (is|are|does|do)\b/, advice: 'is elliptic: say it in full' },
  { pattern: /\b(free|no|taken|every) places?\b|\btakes? (a |no )?places?\b/i, advice: 'write "slot"' },
  { pattern: /\b(hypervisor|VM|berth) (nodes?|servers?)\b/i, advice: 'write "host"' },
  {
    pattern: /(?<![-/.\w])nodes?(?![-/\w])/,
    advice: 'write "host" for a machine that runs VMs, "Node" for the object',
    except: /\b(clusters?|kubelets?|Kubernetes|DaemonSets?|labels?|labelled|node ports?|NODE)\b/,
  },
];

const HEADING_RULES: readonly Rule[] = [
  { pattern: /[.:!?]$/, advice: 'ends with punctuation' },
  { pattern: /\b(it|this|that|them)$/i, advice: 'names no topic' },
];

/** Breach of a rule. `line` counts from 1. */
export interface Fault {
  readonly line: number;
  readonly advice: string;
  readonly sentence: string;
}

const segmenter = new Intl.Segmenter('en', { granularity: 'sentence' });

function parseSentences(text: string): string[] {
  return [...segmenter.segment(text)].map(({ segment }) => segment.trim()).filter((text) => text !== '');
}

function wordCount(text: string): number {
  return text.match(/[\p{L}\p{N}][\p{L}\p{N}_'’./-]*/gu)?.length ?? 0;
}

function adviceFor(text: string, rules: readonly Rule[], maximum: number): string[] {
  const count = wordCount(text);
  const tooLong = count > maximum ? [`has ${count} words, at most ${maximum} are allowed`] : [];
  const broken = rules.filter(({ pattern, except }) => pattern.test(text) && except?.test(text) !== true);
  return [...tooLong, ...broken.map(({ advice }) => advice)];
}

/** Returns every breach of a rule in a Markdown page, in the order of the page. */
export function faultsIn(markdown: string): Fault[] {
  return readPage(markdown).passages.flatMap(({ isHeading, text, line }) => {
    const sentences = isHeading ? [text] : parseSentences(text);
    const rules = isHeading ? HEADING_RULES : SENTENCE_RULES;
    const maximum = isHeading ? HEADING_LENGTH : SENTENCE_LENGTH;
    return sentences.flatMap((sentence) =>
      adviceFor(sentence, rules, maximum).map((advice) => ({ line, advice, sentence })),
    );
  });
}
