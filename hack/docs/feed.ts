/** Makes docs/changelog.atom with one entry for each version in CHANGELOG.md, so that users can follow releases. */
import { micromark } from 'micromark';

const HEADING = /^## (?<version>\S+) \((?:unreleased, )?(?<date>\d{4}-\d{2}-\d{2})\)$/;
const FEED_ID = 'tag:berth.dev,2026:changelog';

interface Release {
  readonly version: string;
  readonly date: string;
  readonly text: string;
}

/** Returns the feed. @throws Error for a heading that has no version and date. */
export function changelogFeed(changelog: string): string {
  const releases = changelog
    .split(/^(?=## )/m)
    .filter((section) => section.startsWith('## '))
    .map(releaseOf);
  const newest =
    releases
      .map(({ date }) => date)
      .toSorted()
      .at(-1) ?? '1970-01-01';
  return `<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
  <title>Berth releases</title>
  <id>${FEED_ID}</id>
  <updated>${newest}T00:00:00Z</updated>
  <author><name>Berth</name></author>
${releases.map(entry).join('')}</feed>
`;
}

function releaseOf(section: string): Release {
  const [heading = '', ...lines] = section.split('\n');
  const { version = '', date = '' } = HEADING.exec(heading)?.groups ?? {};
  if (version === '') {
    throw new Error(`CHANGELOG.md: "${heading}" is not like "## 1.2.3 (2026-01-31)"`);
  }
  return { version, date, text: lines.join('\n').trim() };
}

function entry({ version, date, text }: Release): string {
  return `  <entry>
    <title>Berth ${version}</title>
    <id>${FEED_ID}/${version}</id>
    <updated>${date}T00:00:00Z</updated>
    <content type="html">${escapeXml(micromark(text))}</content>
  </entry>
`;
}

function escapeXml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
