-- One step of the limiter. What each key holds, and the arithmetic, is told in limit.py.
--
-- KEYS  what is counted: of a rate the time at which its bucket is full again, of what runs at once
--       its grants, each scored with its lease's end. In microseconds, by this server's clock alone.
-- ARGV  what to do, microseconds of a lease, then four for each key: "rate" or "lease", a cost or
--       change, the level that isn't passed, and the grant.
-- Returns 1 or 0, admitted or not, and the levels.
--
-- Microseconds since 1970 fit into a double (2^53) until 2255; they are written with %.0f, since
-- Lua would write them with 14 digits.

local what, lease = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local CEILING = 365 * 24 * 60 * 60000000

local function text(number)
  return string.format('%.0f', number)
end

local function argument(i, n)
  return ARGV[2 + 4 * (i - 1) + n]
end

local function level_of(i)
  if argument(i, 1) == 'lease' then
    return redis.call('ZCOUNT', KEYS[i], '(' .. text(now), '+inf')
  end
  local full_at = tonumber(redis.call('GET', KEYS[i]) or now)
  return math.max(full_at - now, 0)
end

local function put(i, level)
  if level == 0 then
    redis.call('DEL', KEYS[i])
  else
    redis.call('SET', KEYS[i], text(now + level), 'PX', text(math.floor(level / 1000) + 1))
  end
end

local function hold(i)
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', text(now))
  redis.call('ZADD', KEYS[i], text(now + lease), argument(i, 4))
  redis.call('PEXPIRE', KEYS[i], text(math.floor(lease / 1000) + 1))
end

if what == 'reserve' or what == 'look' then
  local levels, after = {0}, {1}
  local fits = true
  for i = 1, #KEYS do
    local level = level_of(i)
    levels[i + 1] = level
    after[i + 1] = level + argument(i, 2)
    fits = fits and after[i + 1] <= tonumber(argument(i, 3))
  end
  if not fits or what == 'look' then
    return levels
  end
  for i = 1, #KEYS do
    if argument(i, 1) == 'lease' then
      hold(i)
    else
      put(i, after[i + 1])
    end
  end
  return after
end

if what == 'settle' then
  for i = 1, #KEYS do
    if argument(i, 1) == 'lease' then
      redis.call('ZREM', KEYS[i], argument(i, 4))
    else
      put(i, math.min(math.max(level_of(i) + argument(i, 2), 0), CEILING))
    end
  end
  return {1}
end

if what == 'renew' then
  for i = 1, #KEYS do
    hold(i)
  end
  return {1}
end

-- "beat": a process says that it lives. Did we know, and how many do?
local until_then = tonumber(redis.call('ZSCORE', KEYS[1], argument(1, 4)) or 0)
hold(1)
return {until_then > now and 1 or 0, redis.call('ZCARD', KEYS[1])}
