//! The 64 steps of MD5 (RFC 1321, section 3.4), for any kind of word.

/// Calls `step!(round a b c d word rotation constant)` for each step, where `round` is the letter of
/// its function and `a` to `d` are the names given, turned as the step wants them.
macro_rules! rounds {
    ($step:ident $a:ident $b:ident $c:ident $d:ident) => {
        $step!(F $a $b $c $d 0 7 0xd76aa478);
        $step!(F $d $a $b $c 1 12 0xe8c7b756);
        $step!(F $c $d $a $b 2 17 0x242070db);
        $step!(F $b $c $d $a 3 22 0xc1bdceee);
        $step!(F $a $b $c $d 4 7 0xf57c0faf);
        $step!(F $d $a $b $c 5 12 0x4787c62a);
        $step!(F $c $d $a $b 6 17 0xa8304613);
        $step!(F $b $c $d $a 7 22 0xfd469501);
        $step!(F $a $b $c $d 8 7 0x698098d8);
        $step!(F $d $a $b $c 9 12 0x8b44f7af);
        $step!(F $c $d $a $b 10 17 0xffff5bb1);
        $step!(F $b $c $d $a 11 22 0x895cd7be);
        $step!(F $a $b $c $d 12 7 0x6b901122);
        $step!(F $d $a $b $c 13 12 0xfd987193);
        $step!(F $c $d $a $b 14 17 0xa679438e);
        $step!(F $b $c $d $a 15 22 0x49b40821);
        $step!(G $a $b $c $d 1 5 0xf61e2562);
        $step!(G $d $a $b $c 6 9 0xc040b340);
        $step!(G $c $d $a $b 11 14 0x265e5a51);
        $step!(G $b $c $d $a 0 20 0xe9b6c7aa);
        $step!(G $a $b $c $d 5 5 0xd62f105d);
        $step!(G $d $a $b $c 10 9 0x02441453);
        $step!(G $c $d $a $b 15 14 0xd8a1e681);
        $step!(G $b $c $d $a 4 20 0xe7d3fbc8);
        $step!(G $a $b $c $d 9 5 0x21e1cde6);
        $step!(G $d $a $b $c 14 9 0xc33707d6);
        $step!(G $c $d $a $b 3 14 0xf4d50d87);
        $step!(G $b $c $d $a 8 20 0x455a14ed);
        $step!(G $a $b $c $d 13 5 0xa9e3e905);
        $step!(G $d $a $b $c 2 9 0xfcefa3f8);
        $step!(G $c $d $a $b 7 14 0x676f02d9);
        $step!(G $b $c $d $a 12 20 0x8d2a4c8a);
        $step!(H $a $b $c $d 5 4 0xfffa3942);
        $step!(H $d $a $b $c 8 11 0x8771f681);
        $step!(H $c $d $a $b 11 16 0x6d9d6122);
        $step!(H $b $c $d $a 14 23 0xfde5380c);
        $step!(H $a $b $c $d 1 4 0xa4beea44);
        $step!(H $d $a $b $c 4 11 0x4bdecfa9);
        $step!(H $c $d $a $b 7 16 0xf6bb4b60);
        $step!(H $b $c $d $a 10 23 0xbebfbc70);
        $step!(H $a $b $c $d 13 4 0x289b7ec6);
        $step!(H $d $a $b $c 0 11 0xeaa127fa);
        $step!(H $c $d $a $b 3 16 0xd4ef3085);
        $step!(H $b $c $d $a 6 23 0x04881d05);
        $step!(H $a $b $c $d 9 4 0xd9d4d039);
        $step!(H $d $a $b $c 12 11 0xe6db99e5);
        $step!(H $c $d $a $b 15 16 0x1fa27cf8);
        $step!(H $b $c $d $a 2 23 0xc4ac5665);
        $step!(I $a $b $c $d 0 6 0xf4292244);
        $step!(I $d $a $b $c 7 10 0x432aff97);
        $step!(I $c $d $a $b 14 15 0xab9423a7);
        $step!(I $b $c $d $a 5 21 0xfc93a039);
        $step!(I $a $b $c $d 12 6 0x655b59c3);
        $step!(I $d $a $b $c 3 10 0x8f0ccc92);
        $step!(I $c $d $a $b 10 15 0xffeff47d);
        $step!(I $b $c $d $a 1 21 0x85845dd1);
        $step!(I $a $b $c $d 8 6 0x6fa87e4f);
        $step!(I $d $a $b $c 15 10 0xfe2ce6e0);
        $step!(I $c $d $a $b 6 15 0xa3014314);
        $step!(I $b $c $d $a 13 21 0x4e0811a1);
        $step!(I $a $b $c $d 4 6 0xf7537e82);
        $step!(I $d $a $b $c 11 10 0xbd3af235);
        $step!(I $c $d $a $b 2 15 0x2ad7d2bb);
        $step!(I $b $c $d $a 9 21 0xeb86d391);
    };
}

pub(crate) use rounds;
