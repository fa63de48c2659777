/** The image cache, grouped by the hosts. */
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { hostCaches } from '../model/objects.ts';
import { ROW_HEIGHT, ROWS_STEP, visibleRange } from '../model/visible.ts';
import { useViewport } from './hooks.ts';
import { Space } from './space.tsx';

export function CacheHosts({ entries }: { readonly entries: readonly ImageCacheEntry[] }) {
  const [element, viewport] = useViewport(ROWS_STEP);
  const hosts = hostCaches(entries);
  const { first, end, above, below } = visibleRange(hosts.length, ROW_HEIGHT, viewport);
  return (
    <div class="rows plain" ref={element} tabIndex={0} role="region" aria-label="Hosts">
      <table aria-rowcount={hosts.length + 1}>
        <thead>
          <tr>
            <th scope="col">Host</th>
            <th scope="col" class="integer">
              Cached
            </th>
            <th scope="col" class="left">
              Not there
            </th>
          </tr>
        </thead>
        <tbody>
          <Space height={above} />
          {hosts.slice(first, end).map(({ host, cached, others }, index) => {
            const texts = others.map(({ image, state, message }) =>
              [`${image}: ${state}`, message].filter(Boolean).join(', '),
            );
            return (
              <tr key={host} aria-rowindex={first + index + 2}>
                <td>{host}</td>
                <td class="integer">{cached}</td>
                <td class="left" title={texts.join('\n')}>
                  {texts.join('; ')}
                </td>
              </tr>
            );
          })}
          <Space height={below} />
        </tbody>
      </table>
    </div>
  );
}
