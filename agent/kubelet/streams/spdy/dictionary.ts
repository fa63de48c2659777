/** The dictionary with which SPDY/3 compresses headers, as its specification lists it. */

/** Words of the dictionary. In the dictionary, the length of each word comes before the word, as in a block of headers. */
const WORDS = (
  'options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,accept-language,' +
  'accept-ranges,age,allow,authorization,cache-control,connection,content-base,content-encoding,' +
  'content-language,content-length,content-location,content-md5,content-range,content-type,date,' +
  'etag,expect,expires,from,host,if-match,if-modified-since,if-none-match,if-range,' +
  'if-unmodified-since,last-modified,location,max-forwards,pragma,proxy-authenticate,' +
  'proxy-authorization,range,referer,retry-after,server,te,trailer,transfer-encoding,upgrade,' +
  'user-agent,vary,via,warning,www-authenticate,method,get,status,200 OK,version,HTTP/1.1,url,' +
  'public,set-cookie,keep-alive,origin'
).split(',');

const REST =
  '100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505' +
  '203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized' +
  '403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable' +
  'Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT' +
  'chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,' +
  'text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.';

export const SPDY_DICTIONARY = Buffer.concat([
  ...WORDS.flatMap((word) => [uint32(word.length), Buffer.from(word)]),
  Buffer.from(REST),
]);

export function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}
