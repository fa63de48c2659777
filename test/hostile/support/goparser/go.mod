module berth.dev/goparser

go 1.24
