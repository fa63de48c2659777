# What stands in for the official image of Node.js where that cannot be pulled: hack/images/base.ts makes both files.
FROM scratch
ADD root.tar /
COPY node /usr/local/bin/node
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
